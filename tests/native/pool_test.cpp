// The thread pool and its barrier: what they promise (pool.h), and for ThreadSanitizer to watch.
//
// Where plain variables are written and read by several threads below, it is on purpose: the pool is what orders them.
#include "runtime/pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "runtime/crew.h"

namespace {

using karat::Crew;
using karat::Pool;
using Milliseconds = std::chrono::milliseconds;

template <class F>
void run(Pool& pool, F f) {
    pool.run([](void* argument, int thread) { (*static_cast<F*>(argument))(thread); }, &f);
}

void every_thread_runs_once_in_each_run() {
    for (int size = 1; size <= 5; ++size) {
        const auto pool = Pool::of(size);
        CHECK(pool->size() == size);
        std::vector<int> counts(static_cast<std::size_t>(size), 0);
        for (int i = 0; i < 500; ++i) run(*pool, [&](int thread) { counts.at(static_cast<std::size_t>(thread)) += 1; });
        for (const int count : counts) CHECK(count == 500);
    }
}

void a_barrier_orders_what_lies_on_its_two_sides() {
    for (int size = 1; size <= 4; ++size) {
        const auto pool = Pool::of(size);
        std::vector<int> values(static_cast<std::size_t>(size), 0);
        for (int i = 0; i < 20; ++i)
            run(*pool, [&](int thread) {
                for (int phase = 1; phase <= 20; ++phase) {
                    values[static_cast<std::size_t>(thread)] = phase;
                    pool->barrier();
                    for (const int value : values) CHECK(value == phase);
                    pool->barrier();
                }
            });
    }
}

// Threads that were left alone, or wait for a late one, sleep; each of the two must be woken.
void sleepers_wake() {
    const auto pool = Pool::of(3);
    int done = 0;
    for (int i = 0; i < 12; ++i) {
        std::this_thread::sleep_for(Milliseconds(i % 3 * 10));
        run(*pool, [&](int thread) {
            if (thread == i % 4) std::this_thread::sleep_for(Milliseconds(20));
            pool->barrier();
            if (thread == 0) ++done;
        });
        CHECK(done == i + 1);
    }
}

void one_function_at_a_time_in_all_pools() {
    std::atomic<int> inside{0};
    int total = 0;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 5; ++caller)
        callers.emplace_back([&, caller] {
            const auto pool = Pool::of(1 + caller % 3);  // two of them share a pool
            for (int i = 0; i < 100; ++i)
                run(*pool, [&](int thread) {
                    if (thread != 0) return;
                    CHECK(inside.fetch_add(1) == 0);
                    ++total;
                    inside.fetch_sub(1);
                });
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(total == 500);
}

void a_size_is_shared_as_long_as_it_is_used() {
    auto one = Pool::of(2);
    CHECK(Pool::of(2) == one && Pool::of(3) != one);
    const std::weak_ptr<Pool> watch = one;
    one.reset();
    CHECK(watch.expired());
}

void pools_come_and_go_while_others_run() {
    std::atomic<bool> stop{false};
    int runs = 0;
    std::thread other([&] {
        const auto pool = Pool::of(3);
        while (!stop) run(*pool, [&](int thread) { thread == 1 ? ++runs : 0; });
    });
    for (int i = 0; i < 100; ++i) {
        const auto pool = Pool::of(2 + i % 2 * 2);
        if (i % 5) run(*pool, [](int) {});  // and some go unused
    }
    stop = true;
    other.join();
    CHECK(runs > 0);
}

void sizes_out_of_bounds_are_refused() {
    for (const int size : {0, -1, Pool::kMaxThreads + 1}) CHECK_THROWS(std::invalid_argument, Pool::of(size));
}

void the_floating_point_environment_is_the_default_and_comes_back() {
    const auto pool = Pool::of(2);
    std::fesetround(FE_UPWARD);
    run(*pool, [](int) { CHECK(std::fegetround() == FE_TONEAREST); });
    CHECK(std::fegetround() == FE_UPWARD);
    std::fesetround(FE_TONEAREST);
}

// How large a pool a forked child makes: ThreadSanitizer cannot follow one that starts threads.
#if defined(__SANITIZE_THREAD__)
constexpr int kChildSize = 1;
#else
constexpr int kChildSize = 3;
#endif

// The child's exit status, or its signal (SIGALRM: it hung).
template <class F>
void in_a_fork(const F& f) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        f();
        std::_Exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

void a_forked_child_is_refused_and_may_make_its_own() {
    auto pool = Pool::of(3);
    run(*pool, [](int) {});
    for (const int pause : {0, 30}) {  // workers that spin, workers that sleep
        std::this_thread::sleep_for(Milliseconds(pause));
        in_a_fork([&] {
            std::string message;
            try {
                run(*pool, [](int) {});
            } catch (const std::runtime_error& refusal) {
                message = refusal.what();
            }
            CHECK(message.find("load the model after forking") != std::string::npos);
            const auto own = Pool::of(kChildSize);
            CHECK(own != pool);
            std::atomic<int> count{0};
            run(*own, [&](int) { ++count; });
            CHECK(count == kChildSize);
            pool.reset();  // the last reference in the child: its destructor waits for nobody
        });
    }
    run(*pool, [](int) {});  // the parent's is as before
}

// Another thread holds the pools' lock at the moment of the fork, and does not exist in the child.
void a_fork_in_the_middle_of_a_run_leaves_the_child_free() {
    std::atomic<bool> inside{false}, stop{false};
    std::thread other([&] {
        const auto pool = Pool::of(2);
        run(*pool, [&](int thread) {
            if (thread != 0) return;
            inside = true;
            while (!stop) std::this_thread::sleep_for(Milliseconds(1));
        });
    });
    while (!inside) std::this_thread::yield();
    in_a_fork([] {
        std::atomic<int> count{0};
        run(*Pool::of(kChildSize), [&](int) { ++count; });
        CHECK(count == kChildSize);
    });
    stop = true;
    other.join();
}

// A thread that comes late to each barrier stands for one that gets no core.
void crew_step(Crew& crew, int late_ms) {
    Pool& pool = crew.next();
    struct Step {
        Pool& pool;
        int late_ms;
    } step{pool, late_ms};
    crew.run(
        pool,
        [](void* argument, int thread) {
            const auto& [pool, late_ms] = *static_cast<Step*>(argument);
            for (int i = 0; i < 5; ++i) {
                if (thread == pool.size() - 1 && thread > 0) std::this_thread::sleep_for(Milliseconds(late_ms));
                pool.barrier();
            }
        },
        &step);
}

void a_crew_whose_threads_come_late_halves_itself_and_tries_again() {
    for (const int size : {2, 5}) {
        Crew crew(size);
        CHECK(crew.size() == size && crew.next().size() == size);
        for (int half = size / 2; half >= 1; half /= 2) {
            for (int i = 0; i < 20 && crew.next().size() > half; ++i) crew_step(crew, 20);
            CHECK(crew.next().size() == half);
        }
        CHECK(crew.size() == size);
        for (int i = 0; i < 200; ++i) crew_step(crew, 20);  // of one thread nobody is late
        std::this_thread::sleep_for(Milliseconds(600));
        CHECK(crew.next().size() == size);
        for (int i = 0; i < 20; ++i) crew_step(crew, 20);
        CHECK(crew.next().size() == 1);
        std::this_thread::sleep_for(Milliseconds(600));
        CHECK(crew.next().size() == 1);  // the second pause is longer
    }
}

void crews_of_a_size_judge_together() {
    Crew first(2), of_three(3);
    for (int i = 0; i < 20 && first.next().size() == 2; ++i) crew_step(first, 20);
    Crew second(2);
    CHECK(second.next().size() == 1);
    CHECK(of_three.next().size() == 3);
    std::this_thread::sleep_for(Milliseconds(600));
    CHECK(second.next().size() == 2);  // tried by one of them
    CHECK(first.next().size() == 2);
}

void one_late_thread_among_many_steps_halves_no_crew() {
    Crew crew(2);
    for (int i = 0; i < 3; ++i) {
        crew_step(crew, 3);
        Pool& pool = crew.next();
        CHECK(pool.size() == 2);
        crew.run(pool, [](void*, int) { std::this_thread::sleep_for(Milliseconds(60)); }, nullptr);
        CHECK(crew.next().size() == 2);
    }
}

}  // namespace

int main() {
#define RUN(test) std::printf("%s\n", #test), std::fflush(stdout), test()
    RUN(every_thread_runs_once_in_each_run);
    RUN(a_barrier_orders_what_lies_on_its_two_sides);
    RUN(sleepers_wake);
    RUN(one_function_at_a_time_in_all_pools);
    RUN(a_size_is_shared_as_long_as_it_is_used);
    RUN(pools_come_and_go_while_others_run);
    RUN(sizes_out_of_bounds_are_refused);
    RUN(the_floating_point_environment_is_the_default_and_comes_back);
    RUN(a_forked_child_is_refused_and_may_make_its_own);
    RUN(a_fork_in_the_middle_of_a_run_leaves_the_child_free);
    RUN(a_crew_whose_threads_come_late_halves_itself_and_tries_again);
    RUN(crews_of_a_size_judge_together);
    RUN(one_late_thread_among_many_steps_halves_no_crew);
}
