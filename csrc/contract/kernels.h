// The kernels and their contracts: numeric contract version 7 (docs/determinism.md).
//
// Every kernel source is compiled once for each instruction set (isa.h), into a namespace of its own, and publishes its
// functions in a table. Results do not depend on which build ran: each output is a fixed chain of IEEE operations with
// one rounding each, fused multiply-adds are written as such and nothing else is contracted or reordered. Nor do they
// depend on how work is cut: every function takes a range of independent items, and each item's result is its own.
// Kernels expect the default floating-point environment (float_env.h), which their callers set. Callers leave all
// arithmetic to kernels: a compiler may move an operation of the caller to before the call that sets the environment.
// Where a result is NaN it is NaN in every build; its sign and payload are not part of the contract.
//
// The linker keeps one copy of an inline function, and might keep the one that was compiled for AVX-512, for all
// machines. So headers of kernel sources have no inline function outside the instruction set's namespace, and inside
// only functions that are always inlined (KARAT_INLINE). Tables in headers have internal linkage. No object of an
// instruction set runs code when it is loaded: nobody has asked yet what the machine can run.
// tests/packaging/test_objects.py checks all this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/activations.h"
#include "contract/packed.h"

namespace karat {

// Longest row of a norm: its length is still exact in float32.
inline constexpr std::size_t kMaxColumns = std::size_t{1} << 24;

// Sums over the input columns of a row-parallel layer are a fixed tree over this many leaves.
inline constexpr std::size_t kMaxLeaves = 8;

// out[t, r] = ((sum over k of w[r, k] * x[t, k]) + bias[r]) + residual[t, r]      (bias and residual may be absent)
//   columns are cut into num_leaves (a power of two) leaves that end at leaf_ends; the sum is the binary tree over
//   them, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A leaf is one chain in the order of k, from 0:
//     sum = fma(w[k], x[k], sum)
// for stored floats. Of floats that share a scale it is one chain in the order of blocks, and no leaf cuts a block:
//     part = the chain of fma(float32(code[k]), x[k], part) over the block's columns, in the order of k, from 0
//     sum = fma(part, scale, sum)
// For block formats of integers see IntegerKernels.
//
// The first leaf begins at first_column: columns before it are left out. With a leaf_stride leaves are not added, and
// there is neither bias nor residual: out[l, t, r] = leaf l. With sums_of a token is a term of a sum to which several
// matrices add, and there is no residual: out[sums_of[t], r] = fma(weights[t], sum + bias[r], out[sums_of[t], r])
struct LinearArgs {
    const Matrix* weight;
    const float* x;  // [tokens, columns], rows x_stride apart
    std::size_t x_stride, tokens;
    float* out;  // [tokens, rows], rows out_stride apart
    std::size_t out_stride;
    const float* bias;      // [rows] or null
    const float* residual;  // as out, or null; may be out itself
    const std::uint32_t* leaf_ends;
    std::size_t num_leaves;
    // Block formats read x as integers (activations.h) instead.
    Activations activations;
    const std::uint8_t* digits;  // of digits_rows rows, of which these tokens are those from first_row on
    std::size_t digits_rows, first_row;
    // Experts:
    std::size_t first_column = 0;            // a block begins there
    std::size_t leaf_stride = 0;             // of out
    const std::uint32_t* sums_of = nullptr;  // [tokens] or null, none twice
    const float* weights = nullptr;          // [tokens] with sums_of
};

enum class CacheType : int { f32, f16, bf16 };

// One layer of a paged KV cache. Slots lie in regions of 256. In a region the K of a head is one piece and its V the
// next, so that attention reads a split of keys as one stream:
//
//     region, region_bytes long
//     | layer 0                                           | layer 1 ...
//     | KV head 0              | KV head 1 ...
//
//     a KV head in a region: head_dim 64, float16
//     byte 0                                   32768                              65536
//          | K: 16 groups of 16 slots          | V: 256 slots                     | next KV head
//          | group 0 | group 1 | ... group 15  | slot 0 | slot 1 | ... slot 255
//            2048 bytes                          128 bytes
//
//     K, group 0: slots 0 ... 15               V, slot 0
//     byte 0        32                         byte 0
//          | dim 0  | dim 1 | ... dim 63            | dim 0 | dim 1 | ... dim 63
//            16 slots x 2 bytes                       2 bytes
//
// So K has lanes over slots, and V over the head's dimensions; a slot's V is filled up to a multiple of 16 dimensions.
inline constexpr std::size_t kRegionSlots = 256;

struct CacheView {
    CacheType type;
    std::size_t num_kv_heads, head_dim;
    std::uint8_t* data;        // of the layer, in the first region
    std::size_t region_bytes;  // of all layers: from one region to the next
};

// The tokens and sequences of a step, with the blocks of one cache group (karat.batch.ForwardBatch). Blocks before the
// first key that a token of the step sees are not read.
struct BatchView {
    std::size_t num_tokens, num_seqs, max_blocks, block_size;
    const std::int32_t *positions, *slots, *query_starts, *context_lens, *block_tables;
};

// How a router chooses experts and weighs them (`route`).
struct Routing {
    std::size_t chosen;  // 1 to those of the chosen groups
    bool by_sigmoid;     // the score; else softmax
    bool renormalised;
    std::size_t groups, chosen_groups;  // of as many experts each; 1 and 1: no groups
    float outside;                      // what experts of other groups are compared by
    float plus, least;                  // of the divisor, 0 or more
    float scale;
    const float* bias;    // [experts], or null
    const float* scales;  // [experts], or null

    bool by_logit() const { return bias == nullptr && groups == 1; }
    bool over_chosen() const { return !by_sigmoid && renormalised && by_logit() && plus == 0 && least == 0; }
};

// Causal attention, softmax(q · k * scale) v over the keys at positions [max(0, p + 1 - window), p] of a token at p.
// Query head h reads KV head (first_head + h) / group_heads: the first and the last group may be cut.
//   keys are cut at absolute positions 0, 256, 512 …; within a split, with lanes by position modulo 16:
//     score[j]  = (chain of fma(q[d], k[j, d], score) from 0) * scale; with a cap as soft_cap has it
//     top       = the largest visible score
//     weight[j] = exp(score[j] - top)
//     total     = lanes' chains of weight[j], then folded in halves
//     part[d]   = chain of fma(weight[j], v[j, d], part) from 0
//   splits are merged in order: with both tops m and n, both (total, part) are scaled by exp(m - max) and exp(n - max),
//   part = fma(part, scale, other part * other scale), and likewise total.
//   out[d] = part[d] / total
// With sinks, a part of zeros with the total 1 and the top sinks[h] comes before the first split of head h.
// Keys that are not visible are skipped: what stale slots hold never matters.
struct AttentionArgs {
    CacheView cache;
    BatchView batch;
    const float* q;  // [tokens, heads, head_dim]
    float* out;      // [tokens, heads * head_dim]
    std::size_t num_heads, group_heads, first_head;
    float scale;
    std::size_t window;  // 0: all
    const float* sinks;  // null, or [heads]
    float cap;           // 0: none
    float* scores;       // null, or [heads, tokens of sequence score_seq, its context] of these scores, for observers
    std::size_t score_seq;
};

// A causal convolution of one sequence, a channel by itself. `weight` [taps, channels]: the last tap is of the token
// itself. x and out: [tokens of the step, channels] of the sequence; `before`: the taps - 1 rows before them, the
// oldest first.
//   out[t] = f(chain of fma(weight[j], row[t - taps + 1 + j], sum) from 0, in order of j, + bias)
//   f(y) = y, or with `silu` y / (1 + exp(-y)); bias may be null
inline constexpr std::size_t kMaxTaps = 32;
struct ConvArgs {
    const float *x, *before, *weight, *bias;
    std::size_t taps, channels;
    bool silu;
    float* out;
};

// The gated delta rule (arXiv 2412.06464) of one value head, token by token. S [k_dim, v_dim] is the head's state; q
// and k are those of its key head.
//   m[j]      = chain of fma(k[i], S[i, j], m[j]) from 0, in order of i;  r[j] the same of q
//   p         = chain of fma(q[i], k[i], p) from 0
//   d[j]      = fma(-decay, m[j], v[j]) * beta
//   out[j]    = fma(p, d[j], decay * r[j])
//   S[i, j]   = fma(k[i], d[j], decay * S[i, j])
// Columns are independent, so no result depends on how many are computed together. A head's state lies strip by strip:
//
//     | strip 0: columns 0 … 63                  | strip 1: columns 64 … 127 | …
//     | row 0, 64 floats | row 1 | … row k_dim-1 |                            the last strip may be narrower: v_dim is
//                                                                             rounded up to 16, the rest is zeros
inline constexpr std::size_t kStateColumns = 64;
struct DeltaRuleArgs {
    const float *q, *k;             // [tokens, key_heads, k_dim]
    const float *v, *decay, *beta;  // [tokens, heads, v_dim], [tokens, heads], [tokens, heads]
    float* out;                     // as v
    std::size_t key_heads, heads, k_dim, v_dim;
};

// Every kernel of `Kernels` by name. Those of the first list are the same in all arrangements of an instruction set.
#define KARAT_KERNELS(X) \
    X(embedding)         \
    X(rms_norm)          \
    X(l2_norm)           \
    X(square_sum)        \
    X(part_norm)         \
    X(silu_mul)          \
    X(gelu_mul)          \
    X(clamped_mul)       \
    X(sigmoid_mul)       \
    X(add)               \
    X(mul)               \
    X(sigmoid)           \
    X(scale)             \
    X(soft_cap)          \
    X(rope)              \
    X(kv_write)          \
    X(route)             \
    X(sum_of_experts)    \
    X(attention)         \
    X(attention_split)   \
    X(attention_merge)   \
    X(causal_conv)       \
    X(decay)             \
    X(delta_rule)
#define KARAT_ARRANGED_KERNELS(X) \
    X(linear)                     \
    X(linear_both)

using GatedUnit = void (*)(const float* gate, const float* up, float* out, std::size_t n);

struct Kernels {
    // `attention` unpacks a key once for this many rows (query heads of tokens). A plan cuts tokens into items of this
    // size.
    std::size_t attention_rows;

    // Bytes of scratch memory that a thread needs for `linear` and `attention`.
    std::size_t (*scratch_bytes)(std::size_t head_dim);

    // Computes panels first … last - 1 of a matrix of stored floats.
    void (*linear)(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);

    // The same of two matrices with the same rows, columns, x and leaves.
    void (*linear_both)(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch);

    // out [tokens, columns] = rows ids[t] of the table, as float32 (block formats: code * scale, or
    // fma(code, scale, minimum)).
    void (*embedding)(const Matrix& table, const std::int32_t* ids, std::size_t tokens, float* out);

    // RMSNorm. x and out: [rows, n] float32, the same memory or disjoint; weight: [n] float32; 1 <= n <= kMaxColumns.
    //   lane[l]  = chain of fma(x[i], x[i], lane[l]) from 0, over i = l, l + 16, l + 32, ...
    //   total    = the lanes folded in halves: lane[l] += lane[l + 8], then + 4, + 2, + 1
    //   scale    = 1 / sqrt(total / n + float32(eps))
    //   out[i]   = (x[i] * scale) * weight[i]
    void (*rms_norm)(const float* x, const float* weight, double eps, float* out, std::size_t rows, std::size_t n);

    // out[i] = (x[i] * (1 / sqrt(total + float32(eps)))) * factor, with the total of rms_norm; rows of n as there
    void (*l2_norm)(const float* x, double eps, float factor, float* out, std::size_t rows, std::size_t n);

    // The total of rms_norm of x [n]; 0 of no numbers. n <= kMaxColumns.
    float (*square_sum)(const float* x, std::size_t n);

    // RMSNorm of n numbers of a row of `count`, whose squares add up to `total`: from its scale on as rms_norm.
    void (*part_norm)(const float* x, const float* weight, float total, std::size_t count, double eps, float* out,
                      std::size_t n);

    // out[i] = (gate[i] / (1 + exp(-gate[i]))) * up[i]
    GatedUnit silu_mul;

    // GELU by tanh: g / 2 * (1 + tanh(c (g + 0.044715 g³))) = g / (1 + exp(-2 c (g + 0.044715 g³))), c = sqrt(2 / pi)
    //   out[i] = (g / (1 + exp(g * fma(g * g, -0x1.2444f2p-4, -0x1.988454p+0)))) * up[i], g = gate[i]
    // The quotient is within 2^-23 · |g| of GELU.
    GatedUnit gelu_mul;

    // g = the smaller of gate[i] and limit; u = up[i], at least -limit and at most limit; NaN stays NaN
    // out[i] = (g / (1 + exp(-(alpha * g)))) * (u + 1)
    void (*clamped_mul)(const float* gate, const float* up, float limit, float alpha, float* out, std::size_t n);

    // out[i] = x[i] / (1 + exp(-gate[i / columns])); x and out: [n], gate: [n / columns], columns divides n
    void (*sigmoid_mul)(const float* x, const float* gate, float* out, std::size_t n, std::size_t columns);

    // out[i] = x[i] + y[i]
    void (*add)(const float* x, const float* y, float* out, std::size_t n);

    // out[i] = x[i] * y[i]
    void (*mul)(const float* x, const float* y, float* out, std::size_t n);

    // out[i] = 1 / (1 + exp(-x[i]))
    void (*sigmoid)(const float* x, float* out, std::size_t n);

    // out[i] = x[i] * factor
    void (*scale)(const float* x, float factor, float* out, std::size_t n);

    // out[i] = cap * tanh(x[i] / cap), cap > 0. With y = x[i] / cap, tanh is within 2 units in the last place:
    //   |y| < 0.625:  fma(y * z, polynomial in z, y), z = y * y (simd/tanh.h)
    //   others:       1 - 2 / (exp(2 |y|) + 1), with the sign of y
    void (*soft_cap)(const float* x, float cap, float* out, std::size_t n);

    // Rotary embedding: x, out [tokens, heads, head_dim]; cos and sin [positions, half]. The first 2 * half elements of
    // a head are turned, the others are copied.
    //   out[i]        = fma(x[i], cos[i], -(x[i + half] * sin[i]))
    //   out[i + half] = fma(x[i + half], cos[i], x[i] * sin[i])
    void (*rope)(const float* x, const std::int32_t* positions, const float* cos, const float* sin, float* out,
                 std::size_t tokens, std::size_t heads, std::size_t head_dim, std::size_t half);

    // Store k and v [tokens, kv_heads, head_dim] at the slots, rounded to nearest even. Returns the index of the first
    // element (over k, then v) that is finite and becomes infinite, or -1.
    std::ptrdiff_t (*kv_write)(const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
                               std::size_t tokens);

    // The experts of each row: logits [rows, experts]; ids and weights [rows, chosen]. What comes first is the largest;
    // of equal ones the smaller index, and NaN comes last.
    //   score[e]   = 1 / (1 + exp(-logit[e])), or exp(logit[e] - the first logit) divided by the chain of sums of these
    //                powers from 0, of all experts in order of id. Softmax over the chosen does not divide here
    //   ranked[e]  = score[e] + bias[e]; without bias and groups logit[e] itself
    //   sum[g]     = the first ranked[e] of group g + its second; e of a group that is not among the first
    //                `chosen_groups` sums has ranked[e] = outside
    //   ids        = the first `chosen` of ranked, in their order
    //   total      = chain of sums from 0 of score[ids[j]], in order of j
    //   weights[j] = score[ids[j]], if renormalised / max(total + plus, least); then * scale; then * scales[ids[j]]
    // scratch: [3, experts]
    void (*route)(const float* logits, std::size_t rows, std::size_t experts, const Routing& how, std::int32_t* ids,
                  float* weights, float* scratch);

    // out[i] of n = the binary tree over leaves of: chain of fma(weights[j], rows[j][i], sum) from 0, over the leaf's
    // rows. Leaf l has the rows before leaf_ends[l]; num_leaves is a power of two.
    void (*sum_of_experts)(const float* const* rows, const float* weights, const std::uint32_t* leaf_ends,
                           std::size_t num_leaves, std::size_t n, float* out);

    // Computes tokens first … last - 1 of sequence seq, all query heads of one KV head.
    void (*attention)(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t first,
                      std::size_t last, float* scratch);

    // Computes one split of 256 keys for the only token of a sequence. part: [heads of the KV head, head_dim rounded up
    // to 16, then total, top], which `attention_merge` merges.
    void (*attention_split)(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t split,
                            float* part, float* scratch);
    void (*attention_merge)(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t num_splits,
                            float* parts, std::size_t part_stride);

    // Tokens first … last - 1 of a sequence.
    void (*causal_conv)(const ConvArgs& args, std::size_t first, std::size_t last);

    // out[i] = exp(rate * softplus(a[i] + bias[i])), of rows [n]. rate is rate[i], or with `of_log` -exp(rate[i]).
    //   softplus(y) = max(y, 0) + log(1 + exp(-|y|)); log(1 + x) is within 2 units in the last place (recurrence.cpp)
    void (*decay)(const float* a, const float* bias, const float* rate, bool of_log, float* out, std::size_t rows,
                  std::size_t n);

    // Tokens first … last - 1 (rows of args) of a sequence, in one strip of a head's state. `before` is that strip of
    // the state before them, `after` of the state after them; both may be the same memory.
    void (*delta_rule)(const DeltaRuleArgs& args, std::size_t key_head, std::size_t head, std::size_t strip,
                       std::size_t first, std::size_t last, const float* before, float* after);
};

// Kernels may read up to so many bytes past the end of the digits of all rows; the values are not used.
inline constexpr std::size_t kDigitSlack = 1024;

// Where the digits of a row go: `out` has those of a layer of so many rows, and this is row `row` of them.
struct DigitsPlace {
    std::uint8_t* out;
    std::size_t rows, row;
};

// Linear layers on block formats, with x as integers (activations.h). For each sub-block, in order within a leaf:
//   part = float(sum of code * q)                                                            int8, int16
//   part = fma(float(sum of code * first digit), 65536, float(sum of code * the rest))       int24
//   sum  = fma(part, scale * power, sum)
//   sum  = fma(float(sum of q) * power, minimum, sum)                                        formats with minima
// Leaves, bias and residual are as in LinearArgs. Sums of code * q are exact integers of 32 bits.
struct IntegerKernels {
    // Bytes of scratch memory that a thread needs.
    std::size_t (*scratch_bytes)();

    // Panels that a call of many tokens should have at least, where it can: what they read of x then stays in a cache.
    std::size_t panels_at_once;

    // Bytes that the digits of a row take. Builds lay them out in ways of their own, and those of many rows otherwise
    // than those of a few.
    std::size_t (*row_bytes)(Activations activations, std::size_t columns);

    // Rows first … last - 1 of x [rows, columns] as digits. `out` has room for all rows.
    void (*quantise)(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
                     std::size_t last, std::uint8_t* out);

    // A row x [columns] as digits in several layers, each as `quantise` writes it. It is rounded once, but where layers
    // of a few rows are another build's: there once more. Changes the order of `places`.
    void (*quantise_row)(Activations activations, const float* x, std::size_t columns, DigitsPlace* places,
                         std::size_t count);

    // Computes panels first … last - 1 of the matrix.
    void (*linear)(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
};

inline constexpr std::size_t kSplitKeys = 256;
// Floats behind the values of a split's part: total, top, and what fills up a vector.
inline constexpr std::size_t kPartStats = 16;

namespace generic {
extern const Kernels kernels;
extern const IntegerKernels integer_kernels;
}  // namespace generic
#ifdef KARAT_X86
namespace avx2 {
extern const Kernels kernels;
extern const IntegerKernels integer_kernels;
}  // namespace avx2
namespace avx512 {
extern const Kernels kernels;
extern const IntegerKernels integer_kernels;
}  // namespace avx512
namespace avx512_intel {
extern const Kernels kernels;
}
namespace avx2_vnni {
extern const IntegerKernels integer_kernels;
}
namespace avx512_vnni {
extern const IntegerKernels integer_kernels;
}
namespace avx512_vnni_intel {
extern const IntegerKernels integer_kernels;
}
namespace avx512_amx {
extern const IntegerKernels integer_kernels;
bool tiles_multiply();  // a product that is known, by the tiles of a process that may use them
}  // namespace avx512_amx
#endif
#ifdef KARAT_ARM
namespace neon {
extern const Kernels kernels;
extern const IntegerKernels integer_kernels;
}  // namespace neon
namespace neon_dotprod {
extern const IntegerKernels integer_kernels;
}
namespace neon_i8mm {
extern const IntegerKernels integer_kernels;
}
#endif

}  // namespace karat
