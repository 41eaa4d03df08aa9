#include "plan_ops.h"

#include <cstring>

namespace karat {

void EmbeddingOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(out), thread);
    s.kernels.embedding(table->matrix, s.input.token_ids + range.first, range.size(),
                        s.data(out) + range.first * s.width(out));
}

void SumsOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    s.kernels.sums_of_16(s.data(x) + range.first * s.width(x), s.data(out) + range.first * s.width(out),
                         range.size() * s.width(out));
}

void NormOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t width = s.width(x), n = weight->values.size();  // several norms a row: one for each head
    s.kernels.rms_norm(s.data(x) + range.first * width, weight->values.data(), eps, s.data(out) + range.first * width,
                       range.size() * (width / n), n);
}

void AddOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t width = s.width(x), first = range.first * width;
    s.kernels.add(s.data(x) + first, s.data(y) + first, s.data(out) + first, range.size() * width);
}

void SiluMulOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(gate), thread);
    const std::size_t width = s.width(gate), first = range.first * width;
    s.kernels.silu_mul(s.data(gate) + first, s.data(up) + first, s.data(out) + first, range.size() * width);
}

void RopeOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t width = s.width(x), first = range.first * width;
    s.kernels.rope(s.data(x) + first, s.input.batch.positions + range.first, table->cos.data(), table->sin.data(),
                   s.data(out) + first, range.size(), width / table->head_dim, table->head_dim);
}

void CacheWriteOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(k), thread);
    const std::size_t width = s.width(k), first = range.first * width;
    const std::ptrdiff_t lost = s.kernels.kv_write(s.data(k) + first, s.data(v) + first, cache->layer(layer),
                                                   s.input.batch.slots + range.first, range.size());
    if (lost < 0 || s.overflow_taken.test_and_set()) return;
    std::size_t at = static_cast<std::size_t>(lost);
    const std::size_t count = range.size() * width;
    const bool is_value = at >= count;
    at -= is_value ? count : 0;
    s.overflow = {true, layer, is_value, range.first + at / width, at % width / cache->head_dim,
                  s.data(is_value ? v : k)[first + at]};
}

void SelectOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(out), thread);
    const std::size_t width = s.width(x);
    for (std::size_t row = range.first; row < range.last; ++row)
        std::memcpy(s.data(out) + row * width, s.data(x) + static_cast<std::size_t>(s.input.wanted[row]) * width,
                    width * sizeof(float));
}

void LinearOp::panels(StepContext& s, std::size_t which, StepContext::Range range, float* scratch) const {
    const LinearArgs args{
        .weight = &weights[which]->matrix,
        .x = s.data(x),
        .x_stride = s.width(x),
        .tokens = s.rows(x),
        .out = s.data(out[which]),
        .out_stride = s.width(out[which]),
        .bias = biases[which] ? biases[which]->values.data() : nullptr,
        .residual = residual < 0 ? nullptr : s.data(residual),
        .leaf_ends = leaf_ends.data(),
        .num_leaves = leaf_ends.size(),
        .x_sums = x_sums < 0 ? nullptr : s.data(x_sums),
    };
    s.kernels.linear(args, range.first, range.last, scratch);
}

void LinearOp::run(StepContext& s, int thread) {
    if (s.rows(x) == 0) return;
    float* scratch = s.scratch(thread);
    StepContext::Range range;
    if (act >= 0) {  // gate and up, panel by panel, and what is made of them
        const Matrix& gate = weights[0]->matrix;
        while (s.take(index, gate.num_panels(), range)) {
            panels(s, 0, range, scratch);
            panels(s, 1, range, scratch);
            const std::size_t width = s.width(act), first = gate.first_group(range.first) * kGroupRows;
            const std::size_t end = gate.first_group(range.last) * kGroupRows;
            const std::size_t count = (end < width ? end : width) - first;
            for (std::size_t row = 0; row < s.rows(x); ++row) {
                const std::size_t at = row * width + first;
                s.kernels.silu_mul(s.data(out[0]) + at, s.data(out[1]) + at, s.data(act) + at, count);
            }
        }
        return;
    }
    std::size_t total = 0;
    for (const MatrixRef& weight : weights) total += weight->matrix.num_panels();
    while (s.take(index, total, range)) {
        std::size_t before = 0;
        for (std::size_t which = 0; which < weights.size(); ++which) {
            const std::size_t count = weights[which]->matrix.num_panels();
            const std::size_t first = range.first > before ? range.first - before : 0;
            const std::size_t last = range.last > before ? (range.last - before < count ? range.last - before : count) : 0;
            if (first < last) panels(s, which, {first, last}, scratch);
            before += count;
        }
    }
}

AttentionArgs AttentionOp::args(const StepContext& s) const {
    return {
        .cache = cache->layer(layer),
        .batch = s.input.batch,
        .q = s.data(q),
        .out = s.data(out),
        .num_heads = s.width(q) / cache->head_dim,
        .scale = scale,
        .window = window,
        .scores = s.scores,
        .score_seq = s.score_seq,
    };
}

void AttendOp::run(StepContext& s, int thread) {
    const AttentionArgs a = args(s);
    const auto& items = s.items();
    StepContext::Range range;
    while (s.take(index, items.size(), range))
        for (std::size_t i = range.first; i < range.last; ++i) {
            const auto& item = items[i];
            if (item.split < 0) {
                s.kernels.attention(a, item.seq, item.kv_head, item.first, item.last, s.scratch(thread));
                continue;
            }
            const std::size_t context = static_cast<std::size_t>(a.batch.context_lens[item.seq]);
            const std::size_t begin = window && window < context ? context - window : 0;
            if (static_cast<std::size_t>(item.split) >= begin / kSplitKeys)
                s.kernels.attention_split(a, item.seq, item.kv_head, static_cast<std::size_t>(item.split),
                                          s.part(item.part), s.scratch(thread));
        }
}

void MergeOp::run(StepContext& s, int thread) {
    const AttentionArgs a = args(s);
    const auto& items = s.items();
    const auto range = s.share(items.size(), thread);
    for (std::size_t i = range.first; i < range.last; ++i) {
        const auto& item = items[i];
        if (item.split != 0) continue;  // the first of a head stands for all
        const std::size_t splits =
            (static_cast<std::size_t>(a.batch.context_lens[item.seq]) + kSplitKeys - 1) / kSplitKeys;
        s.kernels.attention_merge(a, item.seq, item.kv_head, splits, s.part(item.part), s.part_floats());
    }
}

}  // namespace karat
