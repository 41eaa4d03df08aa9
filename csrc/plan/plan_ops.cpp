#include "plan/plan_ops.h"

#include <algorithm>
#include <cstring>

namespace karat {

void EmbeddingOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(out), thread);
    s.kernels.embedding(table->matrix, s.input.token_ids + range.first, range.size(),
                        s.data(out) + range.first * s.width(out));
}

bool StepContext::exchange(std::uint32_t collective, int thread) {
    const Transport& group = *plan.group_;
    const std::uint32_t number = first_collective + collective;
    if (thread == 0) group.publish(group.self, number);
    if (group.wait(group.self, number) == Outcome::done) return true;
    stopped.store(true, std::memory_order_relaxed);
    return false;
}

void OwnRowsOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(out), thread);
    const std::size_t width = s.width(out);
    float* slot = s.own_slot(collective);
    for (std::size_t row = range.first; row < range.last; ++row) {
        const std::int32_t id = s.input.token_ids[row] - static_cast<std::int32_t>(first);
        if (id >= 0 && static_cast<std::size_t>(id) < table->matrix.rows)
            s.kernels.embedding(table->matrix, &id, 1, slot + row * width);
    }
}

void FetchRowsOp::run(StepContext& s, int thread) {
    if (!s.exchange(collective, thread)) return;
    const auto range = s.share(s.rows(out), thread);
    const std::size_t width = s.width(out);
    for (std::size_t row = range.first; row < range.last; ++row) {
        int rank = 0;
        while (static_cast<std::uint32_t>(s.input.token_ids[row]) >= ends[static_cast<std::size_t>(rank)]) ++rank;
        std::memcpy(s.data(out) + row * width, s.slot(rank, collective) + row * width, width * sizeof(float));
    }
}

namespace {

constexpr std::size_t kPiece = 256;  // floats summed at a time: every level of the tree stays in the nearest cache

// Adds `n` floats at `at` of the slots of ranks first … first + count - 1 (a power of two), along the tree.
void tree_sum(const StepContext& s, std::uint32_t collective, int first, int count, std::size_t at, std::size_t n,
              float* out) {
    if (count == 2) return s.kernels.add(s.slot(first, collective) + at, s.slot(first + 1, collective) + at, out, n);
    float right[kPiece];
    tree_sum(s, collective, first, count / 2, at, n, out);
    tree_sum(s, collective, first + count / 2, count / 2, at, n, right);
    s.kernels.add(out, right, out, n);
}

}  // namespace

void AllReduceOp::run(StepContext& s, int thread) {
    if (!s.exchange(collective, thread)) return;
    const auto range = s.share(s.rows(out), thread);
    const std::size_t width = s.width(out);
    for (std::size_t row = range.first; row < range.last; ++row)
        for (std::size_t column = 0; column < width; column += kPiece) {
            const std::size_t at = row * width + column, n = width - column < kPiece ? width - column : kPiece;
            float* to = s.data(out) + at;
            tree_sum(s, collective, 0, s.num_ranks(), at, n, to);
            if (bias) s.kernels.add(to, bias->values.data() + column, to, n);
            if (residual >= 0) s.kernels.add(to, s.data(residual) + at, to, n);
        }
}

void GatherOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t from = s.width(x), to = s.width(out);
    for (std::size_t row = range.first; row < range.last; ++row)
        std::memcpy(s.data(out) + row * to + first, s.data(x) + row * from, from * sizeof(float));
}

void ArriveOp::run(StepContext& s, int thread) { (void)s.exchange(collective, thread); }

bool QuantiseOp::is_idle(const StepContext& s) const { return reader->makes_digits(s); }

void QuantiseOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    s.integers.quantise(activations, s.data(x), s.rows(x), s.width(x), range.first, range.last,
                        reinterpret_cast<std::uint8_t*>(s.data(out)));
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
    s.overflow = {true,
                  layer,
                  is_value,
                  range.first + at / width,
                  at % width / cache->head_dim,
                  s.data(is_value ? v : k)[first + at]};
}

void SelectOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(out), thread);
    const std::size_t width = s.width(x);
    for (std::size_t row = range.first; row < range.last; ++row)
        std::memcpy(s.data(out) + row * width, s.data(x) + static_cast<std::size_t>(s.input.wanted[row]) * width,
                    width * sizeof(float));
}

namespace {

// With 16 items a thread all end at about the same time. A part has at least 128 tokens: parts of 64 lose 1.5 % at 192
// tokens, because weights are unpacked once a part (benchmarks/log.md, 24 November).
constexpr std::size_t kEvenItems = 16, kPartTokens = 128;

}  // namespace

Registers LinearOp::reads() const {
    Registers found{x};
    for (const Register reg : {residual, digits})
        if (reg >= 0) found.push_back(reg);
    return found;
}

Registers LinearOp::writes() const {
    Registers found;
    if (collective < 0) found = out;
    if (act >= 0) found.push_back(act);
    return found;
}

LinearArgs LinearOp::args(const StepContext& s, std::size_t which, StepContext::Range tokens, int thread) const {
    const Matrix& matrix = weights[which]->matrix;
    const float* const shared_digits = digits < 0 ? nullptr : s.data(digits);
    float* const to = collective < 0 ? s.data(out[which]) : s.own_slot(static_cast<std::uint32_t>(collective));
    const std::size_t x_stride = s.width(x), out_stride = s.width(out[which]);
    return {
        .weight = &matrix,
        .x = s.data(x) + tokens.first * x_stride,
        .x_stride = x_stride,
        .tokens = tokens.size(),
        .out = to + tokens.first * out_stride,
        .out_stride = out_stride,
        .bias = biases[which] ? biases[which]->values.data() : nullptr,
        .residual = residual < 0 ? nullptr : s.data(residual) + tokens.first * out_stride,
        .leaf_ends = leaf_ends.data(),
        .num_leaves = leaf_ends.size(),
        .activations = activations,
        .digits = makes_digits(s) ? s.own_digits(thread) : reinterpret_cast<const std::uint8_t*>(shared_digits),
        .digits_rows = s.rows(x),
        .first_row = tokens.first,
    };
}

// An item is one panel for all tokens. Where there are few panels and many tokens, an item is one panel for a part of
// the tokens: no thread waits long for another's last item.
void LinearOp::run(StepContext& s, int thread) {
    const std::size_t tokens = s.rows(x);
    if (tokens == 0) return;
    if (makes_digits(s)) s.integers.quantise(activations, s.data(x), 1, s.width(x), 0, 1, s.own_digits(thread));
    std::size_t panels = 0;
    for (const MatrixRef& weight : weights)
        panels += act < 0 || panels == 0 ? weight->matrix.num_panels() : 0;  // gate and up: panel by panel
    std::size_t parts = 1;
    if (s.num_threads > 1)
        while (parts * panels < kEvenItems * s.num_threads && tokens >= 2 * parts * kPartTokens) parts *= 2;
    StepContext::Range items;
    while (s.take(index, parts * panels, thread, items))
        for (std::size_t item = items.first, next; item < items.last; item = next) {
            const std::size_t part = item / panels, first = item % panels;
            next = std::min(items.last, (part + 1) * panels);
            const StepContext::Range of{first, first + next - item};
            const StepContext::Range rows{part * tokens / parts, (part + 1) * tokens / parts};
            act < 0 ? one_after_another(s, thread, of, rows)
                    : gate_and_up(s, thread, of, rows, (tokens + parts - 1) / parts);
        }
}

void LinearOp::compute(const StepContext& s, const LinearArgs& args, std::size_t first, std::size_t last,
                       int thread) const {
    (args.weight->in_blocks() ? s.integers.linear : s.kernels.linear)(args, first, last, s.scratch(thread));
}

// Computes a range of panels, counted over all matrices one after the other.
void LinearOp::one_after_another(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows) const {
    std::size_t before = 0;
    for (std::size_t which = 0; which < weights.size(); ++which) {
        const std::size_t count = weights[which]->matrix.num_panels();
        const std::size_t first = panels.first > before ? panels.first - before : 0;
        const std::size_t last = panels.last > before ? std::min(panels.last - before, count) : 0;
        if (first < last) compute(s, args(s, which, rows, thread), first, last, thread);
        before += count;
    }
}

// Gate, up and SwiGLU of both. For many tokens one panel at a time: SwiGLU then finds gate and up in the second-level
// cache. Where nothing else reads gate and up, each thread writes them to a place of its own that all panels share:
// rows as wide as a panel, so that the next panel's begin one such row further on.
void LinearOp::gate_and_up(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows,
                           std::size_t most_rows) const {
    const Matrix& matrix = weights[0]->matrix;
    const std::size_t width = s.width(act), count = rows.size();
    const std::size_t each = count == 1 ? panels.size() : 1;
    const std::size_t wide = each * kPanelGroups * kGroupRows;
    LinearArgs gate = args(s, 0, rows, thread), up = args(s, 1, rows, thread);
    if (const std::size_t place = most_rows * wide + width;
        only_for_act && s.num_threads * place <= s.rows(x) * width) {
        gate.out = s.data(out[0]) + static_cast<std::size_t>(thread) * place;
        up.out = s.data(out[1]) + static_cast<std::size_t>(thread) * place;
        gate.out_stride = up.out_stride = wide;
    }
    for (std::size_t panel = panels.first, next; panel < panels.last; panel = next) {
        next = std::min(panel + each, panels.last);
        const std::size_t first = matrix.first_group(panel) * kGroupRows;
        const std::size_t end = matrix.first_group(next) * kGroupRows, columns = (end < width ? end : width) - first;
        if (!gate.weight->in_blocks() && !up.weight->in_blocks()) {
            s.kernels.linear_both(gate, up, panel, next, s.scratch(thread));
        } else {
            compute(s, gate, panel, next, thread);
            compute(s, up, panel, next, thread);
        }
        for (std::size_t row = 0; row < count; ++row) {
            const std::size_t at = row * gate.out_stride + first;
            s.kernels.silu_mul(gate.out + at, up.out + at, s.data(act) + (rows.first + row) * width + first, columns);
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
        .group_heads = group_heads,
        .first_head = first_head,
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
    while (s.take(index, items.size(), thread, range))
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
