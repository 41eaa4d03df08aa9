// A step as its threads see it: registers, memory, and the work that is left.
#pragma once

#include <atomic>

#include "plan/plan.h"

namespace karat {

// The state of a step, shared by all threads.
class StepContext {
public:
    StepContext(Plan& plan, const StepInput& input, Pool& pool)
        : plan(plan), kernels(plan.kernels_), integers(plan.integers_), input(input), pool(pool),
          num_threads(static_cast<std::size_t>(pool.size())) {}

    Plan& plan;
    const Kernels& kernels;
    const IntegerKernels& integers;
    const StepInput& input;
    Pool& pool;
    const std::size_t num_threads;
    std::uint32_t first_collective = 0;
    std::atomic<bool> stopped{false};  // the step was abandoned: threads go through the rest without working
    std::atomic_flag overflow_taken;
    Overflow overflow;

    float* data(Register reg) const { return plan.floats(reg); }
    std::uint8_t* bytes(Register reg) const { return plan.bytes(reg); }
    std::int32_t* ids(Register reg) const { return reinterpret_cast<std::int32_t*>(bytes(reg)); }
    std::size_t width(Register reg) const { return plan.finished_info(reg).width; }
    std::size_t rows(Register reg) const { return plan.rows(reg); }
    // What ops asked for as they were finished: memory of a thread, of all threads.
    float* scratch(int thread) const {
        return plan.scratch_.floats() + static_cast<std::size_t>(thread) * plan.scratch_stride_;
    }
    float* workspace() const { return plan.workspace_.floats(); }

    // Where a rank's part of the plan's collective lies.
    float* slot(int rank, std::uint32_t collective) const {
        const Transport& group = *plan.group_;
        return reinterpret_cast<float*>(group.slot(group.self, rank, first_collective + collective));
    }
    int num_ranks() const { return plan.group_->size; }
    float* own_slot(std::uint32_t collective) const { return slot(plan.group_->rank, collective); }
    // Called by all threads, after a barrier. Shows this rank's part to the others and waits for theirs. False if the
    // step was abandoned.
    bool exchange(std::uint32_t collective, int thread);

    // A thread's share of `count` rows.
    struct Range {
        std::size_t first, last;
        std::size_t size() const { return last - first; }
    };
    Range share(std::size_t count, int thread) const {
        const std::size_t t = static_cast<std::size_t>(thread);
        return {count * t / num_threads, count * (t + 1) / num_threads};
    }

    // Takes the next items of work for a thread; false when none are left. A thread takes items from the front of its
    // own share, so that it reads one stream of memory. When its share is used up, it takes from the back of another's.
    // Each time it takes a third of what is left of that share, an even number where possible (kernels read two panels
    // at once).
    bool take(const Op& op, std::size_t count, int thread, Range& range) const {
        for (std::size_t i = 0; i < num_threads; ++i) {
            const std::size_t owner = (static_cast<std::size_t>(thread) + i) % num_threads;
            const Range all = share(count, static_cast<int>(owner));
            // From the front + (from the back << 32).
            auto& taken = plan.counters_[owner * plan.ops_.size() + op.index];
            std::uint64_t seen = taken.load(std::memory_order_relaxed);
            for (;;) {
                const std::size_t front = seen & 0xffffffff, back = seen >> 32, left = all.size() - front - back;
                if (left == 0) break;
                const std::size_t third = 1 + (left - 1) / 3, size = std::min(left, third + third % 2);
                if (!taken.compare_exchange_weak(seen, seen + (i == 0 ? size : size << 32), std::memory_order_relaxed))
                    continue;
                if (plan.group_) plan.group_->stir(plan.group_->self);
                range.first = i == 0 ? all.first + front : all.last - back - size;
                range.last = range.first + size;
                return true;
            }
        }
        return false;
    }
};

}  // namespace karat
