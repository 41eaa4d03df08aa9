#include "runtime/crew.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/clock.h"

namespace karat {
namespace {

constexpr double kWatchedSeconds = 0.05;  // what crews judge by: one late thread is nothing
constexpr double kLongestPause = 8;       // seconds with fewer threads

// A pool of half the threads, or of one where the system refuses more.
std::shared_ptr<Pool> half(int num_threads) {
    try {
        return Pool::of(std::max(num_threads / 2, 1));
    } catch (const std::runtime_error&) {
        return Pool::of(1);
    }
}

}  // namespace

Crew::Crew(int num_threads) : pools_{Pool::of(num_threads)} {}

Pool& Crew::next() {
    pools_[0]->require_here();  // before a lock that may have been held at the fork
    Pool::Seen& seen = pools_[0]->seen();
    const std::lock_guard lock(seen.changing);
    if (seen.halvings > 0 && seconds() >= seen.retry_at_s) {
        seen.halvings = 0;
        seen.watched = {};
    }
    while (pools_.size() <= seen.halvings) pools_.push_back(half(pools_.back()->size()));
    return *pools_[seen.halvings];
}

void Crew::run(Pool& pool, Pool::Task task, void* argument) {
    const Pool::Times times = pool.run(task, argument);
    Pool::Seen& seen = pools_[0]->seen();
    const std::lock_guard lock(seen.changing);
    if (seen.halvings >= pools_.size() || &pool != pools_[seen.halvings].get()) return;  // another crew decided
    seen.watched.all_s += times.all_s;
    seen.watched.asleep_s += times.asleep_s;
    if (pool.size() == 1 || seen.watched.all_s < kWatchedSeconds) return;
    // The caller worked for the rest of the time. If the others worked as long, one thread does it all in `size` times
    // that.
    const bool is_slower_than_one = (seen.watched.all_s - seen.watched.asleep_s) * pool.size() < seen.watched.all_s;
    seen.watched = {};
    if (is_slower_than_one) {
        if (seen.halvings == 0) {
            seen.retry_at_s = seconds() + seen.pause_s;
            seen.pause_s = std::min(2 * seen.pause_s, kLongestPause);
        }
        seen.halvings += 1;
    } else if (seen.halvings == 0) {
        seen.pause_s = Pool::Seen::kFirstPause;
    }
}

}  // namespace karat
