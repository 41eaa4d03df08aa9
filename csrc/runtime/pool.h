// Threads that run one function together, and barriers between its parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace karat {

// Waits for `size` threads; each spins `spins` times and then sleeps.
class Barrier {
public:
    Barrier(int size, int spins) : size_(size), spins_(spins) {}
    void wait();

private:
    const int size_, spins_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> phase_{0};
    std::atomic<int> sleeping_{0};
};

// A fixed number of threads, the caller of `run` among them. One pool of a size serves a whole process, and only one
// function runs at a time in all pools together: several engines do not ask for more cores than there are.
class Pool {
public:
    using Task = void (*)(void* argument, int thread);
    static constexpr int kMaxThreads = 1024;

    // The process' pool of this size, started if there is none. Throws std::invalid_argument for fewer than 1 or more
    // than kMaxThreads, std::runtime_error if the system refuses a thread.
    static std::shared_ptr<Pool> of(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // Of a run: how long it took, and for how much of that its caller slept and spun before it slept.
    struct Times { double all_s = 0, asleep_s = 0; };

    // What the crews (runtime/crew.h) whose largest pool this is have seen and decided together.
    struct Seen {
        static constexpr double kFirstPause = 0.5;  // seconds; doubled each time
        std::mutex changing;
        std::size_t halvings = 0;  // of the pool that runs
        Times watched;             // since they last decided
        double pause_s = kFirstPause, retry_at_s = 0;
    };
    Seen& seen() { return seen_; }
    // Throws std::runtime_error in a forked child, where the threads do not exist.
    void require_here() const;

    // Calls task(argument, thread) on every thread, in the default floating-point environment; returns when all are
    // done. Throws as require_here does.
    Times run(Task task, void* argument);

    // For tasks: all threads wait here for each other.
    void barrier() { barrier_.wait(); }

private:
    explicit Pool(int num_threads);
    void work(int thread);
    void end();

    Seen seen_;
    const int size_, spins_;
    const unsigned process_;  // how many forks away it was made
    Barrier barrier_;
    Task task_ = nullptr;
    void* argument_ = nullptr;
    std::atomic<std::uint32_t> generation_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> ending_{false};
    std::unique_ptr<std::vector<std::thread>> threads_;
};

}  // namespace karat
