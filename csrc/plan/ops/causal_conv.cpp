// A causal convolution over the tokens of each sequence. The rows before a step's are the layer's state.
#include <algorithm>
#include <cstring>

#include "plan/ops/check.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

constexpr std::size_t kArray = 0;  // of the state: the last rows of x

struct CausalConvOp final : RowOp {
    Register x, out;
    StateRef state;
    std::vector<float> weight;  // [taps, channels]
    std::vector<float> zeros;   // [taps - 1, channels]: what stands before a text
    VectorRef bias;             // or null
    std::size_t taps;
    bool silu;

    const char* name() const override { return "causal_conv"; }
    bool needs_barrier_before() const override { return true; }  // the first rows of a share need those before it
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void check(const StepInput& input) const override { require_states(input, state->owner->num_slots); }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        for (std::size_t seq = 0; seq < s.input.num_seqs; ++seq) {
            const auto begin = static_cast<std::size_t>(s.input.query_starts[seq]);
            const auto end = static_cast<std::size_t>(s.input.query_starts[seq + 1]);
            const std::size_t first = std::max(begin, range.first), last = std::min(end, range.last);
            if (first >= last) continue;
            const std::size_t channels = s.width(x);
            const std::int32_t slot = s.input.state_reads[seq];
            const float* const before = slot < 0 ? zeros.data() : state->data(kArray, slot);
            const ConvArgs args{.x = s.data(x) + begin * channels,
                                .before = before,
                                .weight = weight.data(),
                                .bias = bias ? bias->values.data() : nullptr,
                                .taps = taps,
                                .channels = channels,
                                .silu = silu,
                                .out = s.data(out) + begin * channels};
            s.kernels.causal_conv(args, first - begin, last - begin);
            if (last == end) keep(args, end - begin, state->data(kArray, s.input.state_writes[seq]));
        }
    }

private:
    // The last taps - 1 rows of a sequence whose step has `tokens`.
    void keep(const ConvArgs& a, std::size_t tokens, float* to) const {
        const std::size_t kept = taps - 1, old = kept - std::min(kept, tokens);  // old: rows of before
        std::memcpy(to, a.before + (kept - old) * a.channels, old * a.channels * sizeof(float));
        std::memcpy(to + old * a.channels, a.x + (tokens - (kept - old)) * a.channels,
                    (kept - old) * a.channels * sizeof(float));
    }
};

}  // namespace

Register record::causal_conv(Plan& plan, Register x, VectorRef weight, StateRef state, VectorRef bias, bool silu) {
    const RegisterInfo info = plan.info(x);
    const std::size_t channels = info.width, taps = channels ? weight->values.size() / channels : 0;
    require(info.rows == Rows::tokens && taps > 1 && taps <= kMaxTaps && weight->values.size() == taps * channels,
            "a convolution that does not fit");
    require(state->has(kArray, {taps - 1, channels}), "a state that does not fit the convolution");
    require(!bias || bias->values.size() == channels, "a bias that does not fit the convolution");
    auto op = std::make_unique<CausalConvOp>();
    op->weight.resize(taps * channels);
    for (std::size_t channel = 0; channel < channels; ++channel)
        for (std::size_t tap = 0; tap < taps; ++tap)
            op->weight[tap * channels + channel] = weight->values[channel * taps + tap];
    op->zeros.assign((taps - 1) * channels, 0.0f);
    op->x = x;
    op->out = plan.new_register({.width = channels, .rows = info.rows});
    op->state = std::move(state);
    op->bias = std::move(bias);
    op->taps = taps;
    op->silu = silu;
    return plan.append(std::move(op)).out;
}

}  // namespace karat
