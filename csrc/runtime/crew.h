// Which threads run the steps of a plan: all of them, or fewer for as long as others want the cores.
#pragma once

#include <memory>
#include <vector>

#include "runtime/pool.h"

namespace karat {

// Threads wait for each other at each op. Where other processes want the cores, such a wait is for the system to give a
// thread a core again: some milliseconds instead of some microseconds, and all threads together are many times slower
// than one. A crew sees that by the time that its caller sleeps. It then halves itself, and after a while tries all
// threads again. All crews of a size in a process see and do this together: a new plan does not begin with what the
// others found too slow. How many threads run a step changes no bit of it.
class Crew {
public:
    // Throws as Pool::of does.
    explicit Crew(int num_threads);
    // The most threads that it runs.
    int size() const { return pools_[0]->size(); }
    // The pool that runs next: of `size()` threads or fewer. Not for two threads at once.
    Pool& next();
    // Runs the task on a pool that `next` gave.
    void run(Pool& pool, Pool::Task task, void* argument);

private:
    std::vector<std::shared_ptr<Pool>> pools_;  // each has half the threads of the one before
};

}  // namespace karat
