#include "pool.h"

#include <unistd.h>

#include <cfenv>
#include <map>
#include <mutex>
#include <stdexcept>

#include "float_env.h"

namespace karat {
namespace {

constexpr int kSpins = 4000;  // some tens of microseconds

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`.
void wait_while(std::atomic<std::uint32_t>& value, std::uint32_t old, std::atomic<int>& sleeping) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax();
    }
    sleeping.fetch_add(1);
    while (value.load() == old) value.wait(old);
    sleeping.fetch_sub(1);
}

std::mutex& running() {
    static std::mutex mutex;
    return mutex;
}

}  // namespace

void Barrier::wait() {
    if (size_ == 1) return;
    const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) return wait_while(phase_, phase, sleeping_);
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1);
    if (sleeping_.load() > 0) phase_.notify_all();
}

std::shared_ptr<Pool> Pool::of(int num_threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Pool>> pools;
    const std::lock_guard lock(mutex);
    if (std::shared_ptr<Pool> known = pools[num_threads].lock(); known && known->process_ == getpid()) return known;
    std::shared_ptr<Pool> made(new Pool(num_threads));
    pools[num_threads] = made;
    return made;
}

Pool::Pool(int num_threads)
    : size_(num_threads), process_(getpid()), barrier_(num_threads),
      threads_(std::make_unique<std::vector<std::thread>>()) {
    if (num_threads < 1) throw std::invalid_argument("a pool needs at least one thread");
    for (int thread = 1; thread < num_threads; ++thread) threads_->emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
    if (process_ != getpid()) {  // a forked child: the threads are the parent's
        (void)threads_.release();
        return;
    }
    ending_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& thread : *threads_) thread.join();
}

void Pool::work(int thread) {
    std::fesetenv(FE_DFL_ENV);
    for (std::uint32_t seen = 0;;) {
        wait_while(generation_, seen, sleeping_);
        seen = generation_.load(std::memory_order_acquire);
        if (ending_) return;
        task_(argument_, thread);
        barrier_.wait();
    }
}

void Pool::run(Task task, void* argument) {
    if (process_ != getpid())
        throw std::runtime_error(
            "this process was forked from one that had loaded the model: its threads exist only there; "
            "load the model after forking, or start processes with the \"spawn\" method");
    const std::lock_guard lock(running());
    const DefaultFloatEnv env;
    task_ = task;
    argument_ = argument;
    generation_.fetch_add(1);
    if (sleeping_.load() > 0) generation_.notify_all();
    task(argument, 0);
    barrier_.wait();
}

}  // namespace karat
