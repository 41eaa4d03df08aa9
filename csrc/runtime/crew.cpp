#include "runtime/crew.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/clock.h"

namespace karat {
namespace {

constexpr double kWatchedSeconds = 0.05;                // what a crew judges by: one late thread is nothing
constexpr double kFirstPause = 0.5, kLongestPause = 8;  // seconds with fewer threads; doubled each time

// A pool of half the threads, or of one where the system refuses more.
std::shared_ptr<Pool> half(int num_threads) {
    try {
        return Pool::of(num_threads / 2);
    } catch (const std::runtime_error&) {
        return Pool::of(1);
    }
}

}  // namespace

Crew::Crew(int num_threads) : pools_{Pool::of(num_threads)}, pause_s_(kFirstPause) {}

Pool& Crew::next() {
    if (halvings_ > 0 && seconds() >= retry_at_s_) {
        halvings_ = 0;
        watched_ = {};
    }
    return *pools_[halvings_];
}

void Crew::run(Pool::Task task, void* argument) {
    const Pool& pool = *pools_[halvings_];
    const Pool::Times times = pools_[halvings_]->run(task, argument);
    watched_.all_s += times.all_s;
    watched_.asleep_s += times.asleep_s;
    if (pool.size() == 1 || watched_.all_s < kWatchedSeconds) return;
    // The caller worked for the rest of the time. If the others worked as long, one thread does it all in `size` times
    // that.
    const bool is_slower_than_one = (watched_.all_s - watched_.asleep_s) * pool.size() < watched_.all_s;
    watched_ = {};
    if (is_slower_than_one) {
        if (halvings_ == 0) {
            retry_at_s_ = seconds() + pause_s_;
            pause_s_ = std::min(2 * pause_s_, kLongestPause);
        }
        halvings_ += 1;
        if (halvings_ == pools_.size()) pools_.push_back(half(pool.size()));
    } else if (halvings_ == 0) {
        pause_s_ = kFirstPause;
    }
}

}  // namespace karat
