#include "plan/ops/linear.h"

#include <algorithm>

#include "plan/ops/all_reduce.h"
#include "plan/ops/ops.h"

namespace karat {
namespace {

// With 16 items a thread all end at about the same time. A part has at least 128 tokens: parts of 64 lose 1.5 % at 192
// tokens, because weights are unpacked once a part (benchmarks/log.md, 24 November).
constexpr std::size_t kEvenItems = 16, kPartTokens = 128;

// Rows as integers (activations.h), for weights in block formats.
struct QuantiseOp final : RowOp {
    Register x, out;
    Activations activations;

    const char* name() const override { return "quantise"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    // Of one row each thread makes the digits for itself: that takes less than a barrier.
    bool is_idle(const StepContext& s) const override { return s.rows(x) == 1; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        s.integers.quantise(activations, s.data(x), s.rows(x), s.width(x), range.first, range.last, s.bytes(out));
    }
};

std::unique_ptr<LinearOp> new_linear(Plan& plan, Register x, std::vector<MatrixRef> weights,
                                     std::vector<VectorRef> biases, std::vector<std::uint32_t> leaf_ends) {
    const RegisterInfo info = plan.info(x);
    require(!weights.empty() && weights.size() == biases.size(), "one bias, or none, for each matrix");
    require(!leaf_ends.empty() && leaf_ends.size() <= kMaxLeaves && (leaf_ends.size() & (leaf_ends.size() - 1)) == 0 &&
                leaf_ends.back() == info.width && std::is_sorted(leaf_ends.begin(), leaf_ends.end()),
            "leaves that do not cover the columns");
    for (const MatrixRef& weight : weights) require(weight != nullptr, "a layer without a matrix");
    auto op = std::make_unique<LinearOp>();
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const Matrix& matrix = weights[i]->matrix;
        require(matrix.columns == info.width,
                "a matrix of " + std::to_string(matrix.columns) + " columns for rows of " + std::to_string(info.width));
        for (const std::uint32_t end : leaf_ends)
            require(end % matrix.info().block_columns == 0,
                    "a leaf that cuts a block of " + std::string(matrix.info().name));
        require(!biases[i] || biases[i]->values.size() == matrix.rows, "a bias that does not fit its matrix");
        op->out.push_back(plan.new_register({.width = matrix.rows, .rows = info.rows}));
    }
    op->x = x;
    op->activations = plan.activations();
    op->leaf_ends = std::move(leaf_ends);
    op->weights = std::move(weights);
    op->biases = std::move(biases);
    return op;
}

}  // namespace

Registers record::linear(Plan& plan, Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                         std::vector<std::uint32_t> leaf_ends) {
    return plan.append(new_linear(plan, x, std::move(weights), std::move(biases), std::move(leaf_ends))).out;
}

Register record::linear_over(Plan& plan, TransportRef group, Register x, MatrixRef weight, VectorRef bias,
                             std::vector<std::uint32_t> leaf_ends) {
    auto op = new_linear(plan, x, {std::move(weight)}, {std::move(bias)}, std::move(leaf_ends));
    op->collective = plan.new_collective(group);
    return plan.append(std::move(op)).out.front();
}

Registers LinearOp::reads() const {
    Registers found{x};
    for (const auto& reg : {residual, digits_})
        if (reg) found.push_back(*reg);
    return found;
}

Registers LinearOp::writes() const {
    Registers found;
    if (!collective) found = out;
    if (act) found.push_back(*act);
    return found;
}

void LinearOp::lower(Lowering& lowering) {
    if (std::any_of(weights.begin(), weights.end(), [](const auto& weight) { return weight->matrix.in_blocks(); })) {
        const RegisterInfo info = lowering.info(x);
        digit_bytes_ = lowering.integers.row_bytes(activations, info.width);
        auto quantise = std::make_unique<QuantiseOp>();
        quantise->x = x;
        quantise->activations = activations;
        quantise->out = lowering.new_register({.width = digit_bytes_, .rows = info.rows, .element = Element::u8});
        digits_ = quantise->out;
        lowering.before.push_back(std::move(quantise));
    }
    if (collective) {
        auto reduce = std::make_unique<AllReduceOp>();
        reduce->collective = *collective;
        reduce->bias = std::move(biases.front());
        reduce->residual = std::exchange(residual, std::nullopt);
        reduce->out = out.front();
        reduce->rows = lowering.info(x).rows;
        reduce->width = weights.front()->matrix.rows;
        lowering.after.push_back(std::move(reduce));
    }
}

void LinearOp::finish(Finishing& finishing) {
    digits_at_ = (std::max(finishing.kernels.scratch_bytes(1), finishing.integers.scratch_bytes()) + 63) / 64 * 64;
    finishing.ask_for_scratch(digits_at_ + digit_bytes_ + kDigitSlack);
}

bool LinearOp::makes_digits(const StepContext& s) const { return digits_ && s.rows(x) == 1; }

std::uint8_t* LinearOp::own_digits(const StepContext& s, int thread) const {
    return reinterpret_cast<std::uint8_t*>(s.scratch(thread)) + digits_at_;
}

LinearArgs LinearOp::args(const StepContext& s, std::size_t which, StepContext::Range tokens, int thread) const {
    const Matrix& matrix = weights[which]->matrix;
    const std::uint8_t* const shared_digits = digits_ ? s.bytes(*digits_) : nullptr;
    float* const to = collective ? s.own_slot(*collective) : s.data(out[which]);
    const std::size_t x_stride = s.width(x), out_stride = s.width(out[which]);
    return {
        .weight = &matrix,
        .x = s.data(x) + tokens.first * x_stride,
        .x_stride = x_stride,
        .tokens = tokens.size(),
        .out = to + tokens.first * out_stride,
        .out_stride = out_stride,
        .bias = biases[which] ? biases[which]->values.data() : nullptr,
        .residual = residual ? s.data(*residual) + tokens.first * out_stride : nullptr,
        .leaf_ends = leaf_ends.data(),
        .num_leaves = leaf_ends.size(),
        .activations = activations,
        .digits = makes_digits(s) ? own_digits(s, thread) : shared_digits,
        .digits_rows = s.rows(x),
        .first_row = tokens.first,
    };
}

// An item is one panel for all tokens. Where there are few panels and many tokens, an item is one panel for a part of
// the tokens: no thread waits long for another's last item.
void LinearOp::run(StepContext& s, int thread) {
    const std::size_t tokens = s.rows(x);
    if (tokens == 0) return;
    if (makes_digits(s)) s.integers.quantise(activations, s.data(x), 1, s.width(x), 0, 1, own_digits(s, thread));
    std::size_t panels = 0;
    for (const MatrixRef& weight : weights)
        panels += !act || panels == 0 ? weight->matrix.num_panels() : 0;  // gate and up: panel by panel
    std::size_t parts = 1;
    if (s.num_threads > 1)
        while (parts * panels < kEvenItems * s.num_threads && tokens >= 2 * parts * kPartTokens) parts *= 2;
    StepContext::Range items;
    while (s.take(*this, parts * panels, thread, items))
        for (std::size_t item = items.first, next; item < items.last; item = next) {
            const std::size_t part = item / panels, first = item % panels;
            next = std::min(items.last, (part + 1) * panels);
            const StepContext::Range of{first, first + next - item};
            const StepContext::Range rows{part * tokens / parts, (part + 1) * tokens / parts};
            act ? gate_and_up(s, thread, of, rows, (tokens + parts - 1) / parts)
                : one_after_another(s, thread, of, rows);
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

// Gate, up and SwiGLU of both. For many tokens one panel at a time, or as many as kernels ask for: SwiGLU then finds
// gate and up in the second-level cache. Where nothing else reads gate and up, each thread writes them to a place of
// its own that all panels share: rows as wide as a panel, so that the next panel's begin one such row further on.
void LinearOp::gate_and_up(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows,
                           std::size_t most_rows) const {
    const Matrix& matrix = weights[0]->matrix;
    const std::size_t width = s.width(*act), count = rows.size();
    const std::size_t each = count == 1 ? panels.size() : matrix.in_blocks() ? s.integers.panels_at_once : 1;
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
            (s.kernels.*act_kernel)(gate.out + at, up.out + at, s.data(*act) + (rows.first + row) * width + first,
                                    columns);
        }
    }
}

}  // namespace karat
