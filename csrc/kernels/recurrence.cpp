// Recurrent layers: the causal convolution, the decay of a state, and the gated delta rule (kernels.h).
#include "kernels/kernels_isa.h"
#include "simd/decay.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// ---- causal convolution ---------------------------------------------------------------------------------------------

// N vectors of channels of one token; rows[j] is the row that tap j reads.
template <int N>
KARAT_INLINE void convolve(const ConvArgs& a, const float* const* rows, float* out, std::size_t channel, int count) {
    f32x16 sum[N], divisor[N];
    for (int i = 0; i < N; ++i) sum[i] = zero();
    for (std::size_t tap = 0; tap < a.taps; ++tap)
        for (int i = 0; i < N; ++i) {
            const std::size_t at = channel + static_cast<std::size_t>(i) * kLanes;
            const f32x16 weight = load_first(a.weight + tap * a.channels + at, count);
            sum[i] = fma(weight, load_first(rows[tap] + at, count), sum[i]);
        }
    if (a.bias)
        for (int i = 0; i < N; ++i)
            sum[i] = sum[i] + load_first(a.bias + channel + static_cast<std::size_t>(i) * kLanes, count);
    if (a.silu) {
        for (int i = 0; i < N; ++i) divisor[i] = zero() - sum[i];
        exp(divisor);
        for (int i = 0; i < N; ++i) sum[i] = sum[i] / (set1(1.0f) + divisor[i]);
    }
    for (int i = 0; i < N; ++i) store_first(out + channel + static_cast<std::size_t>(i) * kLanes, sum[i], count);
}

}  // namespace

void causal_conv(const ConvArgs& a, std::size_t first, std::size_t last) {
    constexpr std::size_t kTogether = static_cast<std::size_t>(kTuning.exp_vectors) * kLanes;
    const float* rows[kMaxTaps];
    for (std::size_t t = first; t < last; ++t) {
        for (std::size_t tap = 0; tap < a.taps; ++tap)  // tap 0 reads the oldest row
            rows[tap] =
                t + tap + 1 >= a.taps ? a.x + (t + tap + 1 - a.taps) * a.channels : a.before + (t + tap) * a.channels;
        float* const out = a.out + t * a.channels;
        std::size_t channel = 0;
        for (; channel + kTogether <= a.channels; channel += kTogether)
            convolve<kTuning.exp_vectors>(a, rows, out, channel, kLanes);
        for (; channel < a.channels; channel += kLanes) {
            const std::size_t left = a.channels - channel;
            convolve<1>(a, rows, out, channel, left < kLanes ? static_cast<int>(left) : kLanes);
        }
    }
}

// ---- decay ----------------------------------------------------------------------------------------------------------

void decay(const float* a, const float* bias, const float* rate, bool of_log, float* out, std::size_t rows,
           std::size_t n) {
    for (std::size_t row = 0; row < rows; ++row, a += n, out += n)
        for (std::size_t i = 0; i < n; i += kLanes) {
            const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
            const f32x16 y = load_first(a + i, count) + load_first(bias + i, count);
            store_first(out + i, decay_of(y, load_first(rate + i, count), of_log), count);
        }
}

// ---- the gated delta rule -------------------------------------------------------------------------------------------

namespace {

// Columns of one head's state that are computed together: N vectors. A row of them is `stride` numbers after the last.
template <int N>
struct Columns {
    const DeltaRuleArgs& args;
    std::size_t key_head, head, first;  // first: the column of the head
    int count;                          // of a vector's lanes that are columns; kLanes where N > 1
    std::size_t stride;

    const float* row(const float* x, std::size_t token) const {  // of q or k
        return x + (token * args.key_heads + key_head) * args.k_dim;
    }

    // Adds what row i of the state is to the sums that a token takes over it.
    struct Sums {
        f32x16 of_k[N], of_q[N], product;

        KARAT_INLINE Sums() : product(zero()) {
            for (int c = 0; c < N; ++c) of_k[c] = of_q[c] = zero();
        }
        KARAT_INLINE void add(f32x16 k, f32x16 q, const f32x16 (&state)[N]) {
            for (int c = 0; c < N; ++c) of_k[c] = fma(k, state[c], of_k[c]);
            for (int c = 0; c < N; ++c) of_q[c] = fma(q, state[c], of_q[c]);
            product = fma(q, k, product);
        }
    };

    // The state after a token, whose sums of the state before it are known. In the same pass over the state the next
    // token's sums are made, if there is one.
    template <bool has_next>
    KARAT_INLINE void update(const float* before, float* after, const float* k, f32x16 decay, const f32x16 (&change)[N],
                             const float* next_k, const float* next_q, Sums& sums) const {
        for (std::size_t i = 0; i < args.k_dim; ++i, before += stride, after += stride) {
            f32x16 state[N];
            const f32x16 key = broadcast(k + i);
            for (int c = 0; c < N; ++c) state[c] = fma(key, change[c], decay * load(before + c * kLanes));
            for (int c = 0; c < N; ++c) store(after + c * kLanes, state[c]);
            if constexpr (has_next) sums.add(broadcast(next_k + i), broadcast(next_q + i), state);
        }
    }

    KARAT_INLINE void walk(std::size_t token, std::size_t end, const float* before, float* after) const {
        Sums sums;
        const float *k = row(args.k, token), *q = row(args.q, token), *state = before;
        for (std::size_t i = 0; i < args.k_dim; ++i, state += stride) {
            f32x16 values[N];
            for (int c = 0; c < N; ++c) values[c] = load(state + c * kLanes);
            sums.add(broadcast(k + i), broadcast(q + i), values);
        }
        for (; token < end; ++token) {
            const std::size_t at = token * args.heads + head;
            const f32x16 decay = broadcast(args.decay + at), beta = broadcast(args.beta + at);
            const float* const v = args.v + at * args.v_dim + first;
            float* const out = args.out + at * args.v_dim + first;
            f32x16 change[N];
            for (int c = 0; c < N; ++c)
                change[c] = fma(zero() - decay, sums.of_k[c], load_first(v + c * kLanes, count)) * beta;
            for (int c = 0; c < N; ++c)
                store_first(out + c * kLanes, fma(sums.product, change[c], decay * sums.of_q[c]), count);
            sums = Sums();
            k = row(args.k, token);
            if (token + 1 < end)
                update<true>(before, after, k, decay, change, row(args.k, token + 1), row(args.q, token + 1), sums);
            else update<false>(before, after, k, decay, change, nullptr, nullptr, sums);
            before = after;
        }
    }
};

}  // namespace

void delta_rule(const DeltaRuleArgs& args, std::size_t key_head, std::size_t head, std::size_t strip, std::size_t first,
                std::size_t last, const float* before, float* after) {
    constexpr int kTogether = kTuning.delta_vectors;
    const std::size_t begin = strip * kStateColumns, padded = (args.v_dim + kLanes - 1) / kLanes * kLanes;
    const std::size_t width = padded - begin < kStateColumns ? padded - begin : kStateColumns;
    std::size_t column = 0;
    for (; column + kTogether * kLanes <= width && begin + column + kTogether * kLanes <= args.v_dim;
         column += kTogether * kLanes) {
        const Columns<kTogether> columns{args, key_head, head, begin + column, kLanes, width};
        columns.walk(first, last, before + column, after + column);
    }
    for (; column < width; column += kLanes) {
        const std::size_t left = args.v_dim - begin - column;
        const int count = left < kLanes ? static_cast<int>(left) : kLanes;
        const Columns<1> columns{args, key_head, head, begin + column, count, width};
        columns.walk(first, last, before + column, after + column);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE
