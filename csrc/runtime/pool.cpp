#include "runtime/pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cfenv>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>

#include "runtime/clock.h"
#include "runtime/float_env.h"
#include "runtime/spin.h"

namespace karat {
namespace {

constexpr int kShortSpins = 64;  // too short to look at a clock

thread_local double asleep_s = 0;  // for how long this thread slept in all, and spun before it slept

bool changes(const std::atomic<std::uint32_t>& value, std::uint32_t old, int spins) {
    for (int spin = 0; spin < spins; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return true;
        relax();
    }
    return false;
}

// Returns when `value` is no longer `old`.
void wait_while(std::atomic<std::uint32_t>& value, std::uint32_t old, std::atomic<int>& sleeping, int spins) {
    if (changes(value, old, std::min(spins, kShortSpins))) return;
    const double begun_s = seconds();
    if (changes(value, old, spins - kShortSpins)) return;
    sleeping.fetch_add(1);
    while (value.load() == old) value.wait(old);
    sleeping.fetch_sub(1);
    asleep_s += seconds() - begun_s;
}

// How often a thread of a pool spins. Not at all if there are more threads than CPUs that they may run on: a spinning
// thread would keep the threads it waits for from running.
int spins_of(int num_threads) {
    int cpus = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) == 0) cpus = CPU_COUNT(&usable);
#endif
    return num_threads <= cpus ? kSpins : 0;
}

// State that all pools of a process share. A forked child gets a new one: in the old one a thread that does not exist
// in the child may hold a lock for ever. It is never destroyed, because threads may be at work while the process exits.
struct Shared {
    std::mutex looking, running;
    std::map<int, std::weak_ptr<Pool>> pools;
};

std::atomic<unsigned> forks{0};  // on the way from the first process to this one, since this library was loaded
std::atomic<Shared*> current{nullptr};
[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, [] {
    forks.fetch_add(1);
    current.store(nullptr);
});

Shared& shared() {
    Shared* known = current.load();
    if (known) return *known;
    auto made = std::make_unique<Shared>();
    return current.compare_exchange_strong(known, made.get()) ? *made.release() : *known;
}

}  // namespace

void Barrier::wait() {
    if (size_ == 1) return;
    const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_)
        return wait_while(phase_, phase, sleeping_, spins_);
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1);
    if (sleeping_.load() > 0) phase_.notify_all();
}

std::shared_ptr<Pool> Pool::of(int num_threads) {
    if (num_threads < 1 || num_threads > kMaxThreads)
        throw std::invalid_argument(std::to_string(num_threads) + " threads; a pool has from 1 to " +
                                    std::to_string(kMaxThreads));
    Shared& all = shared();
    const std::lock_guard lock(all.looking);
    if (std::shared_ptr<Pool> known = all.pools[num_threads].lock()) return known;
    std::shared_ptr<Pool> made(new Pool(num_threads));
    all.pools[num_threads] = made;
    return made;
}

Pool::Pool(int num_threads)
    : size_(num_threads), spins_(spins_of(num_threads)), process_(forks), barrier_(num_threads, spins_),
      threads_(std::make_unique<std::vector<std::thread>>()) {
    threads_->reserve(static_cast<std::size_t>(num_threads - 1));
    try {
        for (int thread = 1; thread < num_threads; ++thread) threads_->emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& refusal) {
        const std::size_t started = threads_->size() + 1;
        end();
        throw std::runtime_error("the system gives this process only " + std::to_string(started) + " of " +
                                 std::to_string(num_threads) + " threads (" + refusal.what() +
                                 "); ask for fewer, or raise the limit (ulimit -u, ulimit -v, a container's pids)");
    }
}

Pool::~Pool() {
    if (process_ == forks) end();
    else  // a forked child: the threads are the parent's
        (void)threads_.release();
}

void Pool::end() {
    ending_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& thread : *threads_) thread.join();
}

void Pool::work(int thread) {
    std::fesetenv(FE_DFL_ENV);
    for (std::uint32_t seen = 0;;) {
        wait_while(generation_, seen, sleeping_, spins_);
        seen = generation_.load(std::memory_order_acquire);
        if (ending_) return;
        task_(argument_, thread);
        barrier_.wait();
    }
}

void Pool::require_here() const {
    if (process_ != forks)
        throw std::runtime_error(
            "this process was forked from one that had loaded the model: its threads exist only there; "
            "load the model after forking, or start processes with the \"spawn\" method");
}

Pool::Times Pool::run(Task task, void* argument) {
    require_here();
    const std::lock_guard lock(shared().running);
    const DefaultFloatEnv env;
    const double begun_s = seconds(), slept_before_s = asleep_s;
    task_ = task;
    argument_ = argument;
    generation_.fetch_add(1);
    if (sleeping_.load() > 0) generation_.notify_all();
    task(argument, 0);
    barrier_.wait();
    return {seconds() - begun_s, asleep_s - slept_before_s};
}

}  // namespace karat
