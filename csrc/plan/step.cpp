// Running a plan: ops check the step, then all threads run all ops.
#include "plan/step.h"

#include <stdexcept>
#include <string>

namespace karat {

// Checks what memory safety needs. karat.batch checks the rest where a batch is built.
void Plan::check(const StepInput& input) const {
    require(finished_, "the plan is not finished");
    if (input.num_tokens > limits_.tokens || input.num_wanted > limits_.wanted || input.num_seqs > limits_.seqs)
        throw std::invalid_argument("a step of " + std::to_string(input.num_tokens) + " tokens, " +
                                    std::to_string(input.num_wanted) + " wanted rows and " +
                                    std::to_string(input.num_seqs) + " sequences; the plan was made for " +
                                    std::to_string(limits_.tokens) + ", " + std::to_string(limits_.wanted) + " and " +
                                    std::to_string(limits_.seqs));
    for (const auto& op : ops_) op->check(input);
}

bool StepContext::exchange(std::uint32_t collective, int thread) {
    const Transport& group = *plan.group_;
    const std::uint32_t number = first_collective + collective;
    if (thread == 0) group.publish(group.self, number);
    if (group.wait(group.self, number) == Outcome::done) return true;
    stopped.store(true, std::memory_order_relaxed);
    return false;
}

void Plan::work(StepContext& step, int thread) {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (ops_[i]->is_idle(step)) continue;
        if (barrier_before_[i]) step.pool.barrier();
        if (!step.stopped.load(std::memory_order_relaxed)) ops_[i]->run(step, thread);
    }
}

void Plan::task(void* argument, int thread) {
    auto& step = *static_cast<StepContext*>(argument);
    step.plan.work(step, thread);
}

Overflow Plan::run(const StepInput& input) {
    if (running_.test_and_set(std::memory_order_acquire))
        throw std::runtime_error(
            "another thread is running a step of this model; let them take turns, or load one each");
    const struct Ended {
        std::atomic_flag& flag;
        ~Ended() { flag.clear(std::memory_order_release); }
    } ended{running_};
    check(input);
    for (const auto& op : ops_) op->begin(input);
    num_rows_ = {input.num_tokens, input.num_seqs, input.num_wanted};  // by Rows
    const std::size_t num_counters = static_cast<std::size_t>(crew_.size()) * ops_.size();
    for (std::size_t i = 0; i < num_counters; ++i) counters_[i].store(0, std::memory_order_relaxed);
    Pool& pool = crew_.next();
    StepContext step(*this, input, pool);
    if (group_) step.first_collective = group_->reserve(group_->self, num_collectives_);
    if (group_) pool.run(task, &step);  // which may wait for a slow rank: that says nothing about these threads
    else crew_.run(pool, task, &step);
    if (step.stopped) throw std::runtime_error("the step was abandoned: another rank failed");
    return step.overflow;
}

}  // namespace karat
