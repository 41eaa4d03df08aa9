// Running a plan: checks the step, lists its items of attention, and runs all ops on all threads.
#include <algorithm>
#include <stdexcept>

#include "plan/plan.h"
#include "plan/plan_ops.h"

namespace karat {

std::size_t Plan::rows(Register reg) const {
    return registers_.at(static_cast<std::size_t>(reg)).rows == Rows::tokens ? num_tokens_ : num_wanted_;
}

std::size_t Plan::max_rows(Register reg) const {
    return registers_.at(static_cast<std::size_t>(reg)).rows == Rows::tokens ? max_tokens_ : max_wanted_;
}

// Checks what memory safety needs. karat.batch checks the rest where a batch is built.
void Plan::check(const StepInput& input) const {
    const BatchView& b = input.batch;
    require(finished_, "the plan is not finished");
    if (b.num_tokens > max_tokens_ || input.num_wanted > max_wanted_ || b.num_seqs > max_seqs_)
        throw std::invalid_argument(
            "a step of " + std::to_string(b.num_tokens) + " tokens, " + std::to_string(input.num_wanted) +
            " wanted rows and " + std::to_string(b.num_seqs) + " sequences; the plan was made for " +
            std::to_string(max_tokens_) + ", " + std::to_string(max_wanted_) + " and " + std::to_string(max_seqs_));
    for (std::size_t t = 0; t < b.num_tokens; ++t) {
        require(
            !has_embedding_ || static_cast<std::size_t>(static_cast<std::uint32_t>(input.token_ids[t])) < vocab_size_,
            "a token id outside the vocabulary");
        require(b.positions[t] >= 0 && (!has_rope_ || static_cast<std::size_t>(b.positions[t]) < num_positions_),
                "a position beyond the rotary table");
        require(!has_cache_ || static_cast<std::size_t>(static_cast<std::uint32_t>(b.slots[t])) < num_slots_,
                "a slot outside the cache");
    }
    for (std::size_t r = 0; r < input.num_wanted; ++r)
        require(static_cast<std::size_t>(static_cast<std::uint32_t>(input.wanted[r])) < b.num_tokens,
                "a wanted row outside the step");
    if (num_heads_ == 0) return;
    require(b.block_size > 0 && b.query_starts[0] == 0 &&
                static_cast<std::size_t>(b.query_starts[b.num_seqs]) == b.num_tokens,
            "query_starts do not fit");
    for (std::size_t seq = 0; seq < b.num_seqs; ++seq) {
        const std::int32_t first = b.query_starts[seq], last = b.query_starts[seq + 1];
        const std::size_t context = static_cast<std::size_t>(b.context_lens[seq]);
        require(b.block_size <= num_slots_, "blocks larger than the cache");  // so no product below wraps
        require(first < last && static_cast<std::size_t>(last) <= b.num_tokens && b.context_lens[seq] > 0 &&
                    context <= max_context_ && (context + b.block_size - 1) / b.block_size <= b.max_blocks,
                "a sequence that does not fit the step");
        for (std::int32_t t = first; t < last; ++t)
            require(context - static_cast<std::size_t>(b.positions[t]) == static_cast<std::size_t>(last - t),
                    "positions that do not end with their sequence");
        for (std::size_t block = 0; block * b.block_size < context; ++block) {
            const std::int32_t id = b.block_tables[seq * b.max_blocks + block];
            require(id >= 0 && static_cast<std::size_t>(id) < num_slots_ / b.block_size, "a block outside the cache");
        }
    }
}

void Plan::list_items(const BatchView& b) {
    items_.clear();
    if (num_heads_ == 0) return;
    const std::size_t tile = std::max<std::size_t>(1, kernels_.attention_rows / std::min(group_heads_, num_heads_));
    std::uint32_t part = 0;
    for (std::size_t seq = 0; seq < b.num_seqs; ++seq) {
        const std::size_t tokens = static_cast<std::size_t>(b.query_starts[seq + 1] - b.query_starts[seq]);
        const std::size_t splits = (static_cast<std::size_t>(b.context_lens[seq]) + kSplitKeys - 1) / kSplitKeys;
        for (std::size_t head = 0; head < num_kv_heads_; ++head) {
            const auto s = static_cast<std::uint32_t>(seq), h = static_cast<std::uint32_t>(head);
            if (tokens == 1)
                for (std::size_t split = 0; split < splits; ++split)
                    items_.push_back({s, h, 0, 1, static_cast<std::int32_t>(split), part++});
            else  // the longest first: later tokens see more keys
                for (std::size_t last = tokens; last > 0; last -= std::min(last, tile))
                    items_.push_back({s, h, static_cast<std::uint32_t>(last > tile ? last - tile : 0),
                                      static_cast<std::uint32_t>(last), -1, 0});
        }
    }
}

void Plan::work(StepContext& step, int thread) {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (ops_[i]->is_idle(step)) continue;
        if (barrier_before_[i]) pool_->barrier();
        if (!step.stopped.load(std::memory_order_relaxed)) ops_[i]->run(step, thread);
    }
}

void Plan::task(void* argument, int thread) {
    auto& step = *static_cast<StepContext*>(argument);
    step.plan.work(step, thread);
}

Plan::Overflow Plan::run(const StepInput& input, float* scores, std::size_t score_seq) {
    if (running_.test_and_set(std::memory_order_acquire))
        throw std::runtime_error(
            "another thread is running a step of this model; let them take turns, or load one each");
    const struct Ended {
        std::atomic_flag& flag;
        ~Ended() { flag.clear(std::memory_order_release); }
    } ended{running_};
    check(input);
    num_tokens_ = input.batch.num_tokens;
    num_wanted_ = input.num_wanted;
    list_items(input.batch);
    const std::size_t num_counters = static_cast<std::size_t>(pool_->size()) * ops_.size();
    for (std::size_t i = 0; i < num_counters; ++i) counters_[i].store(0, std::memory_order_relaxed);
    StepContext step(*this, input, pool_->size());
    step.scores = scores;
    step.score_seq = score_seq;
    if (group_) step.first_collective = group_->reserve(group_->self, num_collectives_);
    pool_->run(task, &step);
    if (step.stopped) throw std::runtime_error("the step was abandoned: another rank failed");
    return step.overflow;
}

}  // namespace karat
