// The gated delta rule over the tokens of each sequence, and what decays its state.
#include <algorithm>
#include <cstring>

#include "plan/ops/check.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

constexpr std::size_t kArray = 1;  // of the state: S

struct DecayOp final : RowOp {
    Register a, out;
    VectorRef bias, rate;
    bool of_log;

    const char* name() const override { return "decay"; }
    Registers reads() const override { return {a}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(a), thread);
        const std::size_t width = s.width(a), first = range.first * width;
        s.kernels.decay(s.data(a) + first, bias->values.data(), rate->values.data(), of_log, s.data(out) + first,
                        range.size(), width);
    }
};

// An item is a strip of a head's state of a sequence, over all of its tokens.
struct DeltaRuleOp final : Op {
    Register q, k, v, decay, beta, out;
    StateRef state;
    std::vector<std::size_t> key_heads;
    std::size_t num_key_heads, k_dim, v_dim;

    const char* name() const override { return "delta_rule"; }
    Registers reads() const override { return {q, k, v, decay, beta}; }
    Registers writes() const override { return {out}; }
    void check(const StepInput& input) const override { require_states(input, state->owner->num_slots); }
    void run(StepContext& s, int thread) override {
        const DeltaRuleArgs args{.q = s.data(q),
                                 .k = s.data(k),
                                 .v = s.data(v),
                                 .decay = s.data(decay),
                                 .beta = s.data(beta),
                                 .out = s.data(out),
                                 .key_heads = num_key_heads,
                                 .heads = key_heads.size(),
                                 .k_dim = k_dim,
                                 .v_dim = v_dim};
        const std::size_t padded = (v_dim + 15) / 16 * 16, strips = (padded + kStateColumns - 1) / kStateColumns;
        const std::size_t of_seq = args.heads * strips;
        StepContext::Range items;
        while (s.take(*this, s.input.num_seqs * of_seq, thread, items))
            for (std::size_t item = items.first; item < items.last; ++item) {
                const std::size_t seq = item / of_seq, head = item % of_seq / strips, strip = item % strips;
                const std::size_t at = head * k_dim * padded + strip * kStateColumns * k_dim;
                const std::size_t floats = std::min(kStateColumns, padded - strip * kStateColumns) * k_dim;
                const std::int32_t slot = s.input.state_reads[seq];
                float* const after = state->data(kArray, s.input.state_writes[seq]) + at;
                if (slot < 0) std::memset(after, 0, floats * sizeof(float));
                s.kernels.delta_rule(args, key_heads[head], head, strip,
                                     static_cast<std::size_t>(s.input.query_starts[seq]),
                                     static_cast<std::size_t>(s.input.query_starts[seq + 1]),
                                     slot < 0 ? after : state->data(kArray, slot) + at, after);
            }
    }
};

}  // namespace

Register record::decay(Plan& plan, Register a, VectorRef bias, VectorRef rate, bool of_log) {
    const RegisterInfo info = plan.info(a);
    require(bias->values.size() == info.width && rate->values.size() == info.width,
            "a bias or rates that do not fit the decay");
    auto op = std::make_unique<DecayOp>();
    op->a = a;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->bias = std::move(bias);
    op->rate = std::move(rate);
    op->of_log = of_log;
    return plan.append(std::move(op)).out;
}

Register record::delta_rule(Plan& plan, Register q, Register k, Register v, Register decay, Register beta,
                            StateRef state, std::vector<std::size_t> key_heads) {
    const OwnedState::Shape shape =
        state->owner->shapes.size() > kArray ? state->owner->shapes[kArray] : OwnedState::Shape{};
    require(shape.size() == 3, "a state that does not fit the delta rule");
    const std::size_t heads = shape[0], k_dim = shape[1], v_dim = shape[2], num_key_heads = plan.info(k).width / k_dim;
    const auto has = [&](Register reg, std::size_t width) {
        return plan.info(reg).is_like({.width = width, .rows = Rows::tokens});
    };
    require(has(q, num_key_heads * k_dim) && has(k, num_key_heads * k_dim) && has(v, heads * v_dim) &&
                has(decay, heads) && has(beta, heads) && key_heads.size() == heads,
            "a state that does not fit the delta rule");
    for (const std::size_t key_head : key_heads) require(key_head < num_key_heads, "no such key head");
    auto op = std::make_unique<DeltaRuleOp>();
    op->q = q;
    op->k = k;
    op->v = v;
    op->decay = decay;
    op->beta = beta;
    op->out = plan.new_register({.width = heads * v_dim, .rows = Rows::tokens});
    op->state = std::move(state);
    op->key_heads = std::move(key_heads);
    op->num_key_heads = num_key_heads;
    op->k_dim = k_dim;
    op->v_dim = v_dim;
    return plan.append(std::move(op)).out;
}

}  // namespace karat
