// Recurrent layers: the causal convolution, the decay of a state, and the gated delta rule (contract/kernels.h).
#pragma once

#include "gpu/elementwise.h"
#include "gpu/shapes.h"
#include "simd/decay.h"

namespace karat::gpu {

struct Decay {
    const float *a, *bias, *rate;
    int n;  // of a row
    bool of_log;
    float* out;
    KARAT_INLINE void operator()(int i) const {
        out[i] = decay_of(load(a + i) + load(bias + i % n), load(rate + i % n), of_log).v;
    }
};

// Rows of a sequence that a convolution reads: those of the step, and those before it in the slot that it reads.
struct ConvRows {
    ConvShape a;
    int seq;

    KARAT_INLINE std::size_t slot(int number) const {
        return static_cast<std::size_t>(number) * (a.taps - 1) * a.channels;
    }
    // Row `t` of the sequence: from -(taps - 1) on; those from 0 on are the step's.
    KARAT_INLINE float at(int t, int channel) const {
        if (t >= 0)
            return value_at<float>(a.x + static_cast<std::size_t>(a.query_starts[seq] + t) * a.channels + channel);
        const int from = a.reads[seq];
        if (from < 0) return 0;
        return value_at<float>(a.state + slot(from) + static_cast<std::size_t>(t + a.taps - 1) * a.channels + channel);
    }
};

// A thread has a channel of a token.
struct CausalConv {
    ConvShape a;

    KARAT_INLINE void operator()(int i) const {
        const int token = i / a.channels, channel = i % a.channels;
        int seq = 0;
        while (a.query_starts[seq + 1] <= token) ++seq;
        const ConvRows rows{a, seq};
        const int t = token - a.query_starts[seq];
        float sum = 0;
        for (int tap = 0; tap < a.taps; ++tap)
            sum = fma(value_at<float>(a.weight + static_cast<std::size_t>(channel) * a.taps + tap),
                      rows.at(t + tap + 1 - a.taps, channel), sum);
        if (a.bias) sum = sum + value_at<float>(a.bias + channel);
        if (a.silu) sum = sum / one_plus_exp_of_minus(sum);
        a.out[i] = sum;
    }
};

// The state after the step: a thread has a channel of a row of a sequence. The slot that is written is not read.
struct KeepRows {
    ConvShape a;

    KARAT_INLINE void operator()(int i) const {
        const int channel = i % a.channels, row = i / a.channels % (a.taps - 1), seq = i / a.channels / (a.taps - 1);
        const int to = a.writes[seq];
        if (to < 0) return;
        const ConvRows rows{a, seq};
        const int tokens = a.query_starts[seq + 1] - a.query_starts[seq];
        a.state[rows.slot(to) + static_cast<std::size_t>(row) * a.channels + channel] =
            rows.at(tokens + row - (a.taps - 1), channel);
    }
};

// A thread has a column of a head's state, which it takes through the tokens of a sequence.
struct DeltaRule {
    DeltaRuleShape a;

    KARAT_INLINE void operator()(int i) const {
        const int column = i % a.v_dim, head = i / a.v_dim % a.heads, seq = i / a.v_dim / a.heads;
        const int from = a.reads[seq], key_head = a.key_head_of[head];
        const std::size_t in_slot = static_cast<std::size_t>(head) * a.k_dim * a.v_dim + column;
        const std::size_t of_slot = static_cast<std::size_t>(a.heads) * a.k_dim * a.v_dim;
        const float* before = from < 0 ? nullptr : a.state + from * of_slot + in_slot;
        float* const after = a.state + a.writes[seq] * of_slot + in_slot;
        for (int token = a.query_starts[seq]; token < a.query_starts[seq + 1]; ++token) {
            const std::size_t key = (static_cast<std::size_t>(token) * a.key_heads + key_head) * a.k_dim;
            const std::size_t at = static_cast<std::size_t>(token) * a.heads + head;
            float of_k = 0, of_q = 0, product = 0;
            for (int row = 0; row < a.k_dim; ++row) {
                const float k = value_at<float>(a.k + key + row), q = value_at<float>(a.q + key + row);
                const float state = before ? before[static_cast<std::size_t>(row) * a.v_dim] : 0.0f;
                of_k = fma(k, state, of_k);
                of_q = fma(q, state, of_q);
                product = fma(q, k, product);
            }
            const float decay = value_at<float>(a.decay + at);
            const float change =
                fma(0.0f - decay, of_k, value_at<float>(a.v + at * a.v_dim + column)) * value_at<float>(a.beta + at);
            a.out[at * a.v_dim + column] = fma(product, change, decay * of_q);
            for (int row = 0; row < a.k_dim; ++row) {
                const std::size_t place = static_cast<std::size_t>(row) * a.v_dim;
                after[place] = fma(value_at<float>(a.k + key + row), change, decay * (before ? before[place] : 0.0f));
            }
            before = after;
        }
    }
};

}  // namespace karat::gpu
