// What launches are asked to compute: arguments of kernels that those who launch them fill in.
#pragma once

#include "contract/kernels.h"
#include "gpu/host.h"

namespace karat::gpu {

// The experts of a mixture: row t of a result is pair t, of row t / per_row of x and of matrix ids[t] - first. It is
// not written if that is none of `count`.
struct Chosen {
    const std::uint8_t* const* matrices;  // null: LinearShape::weight is for all rows
    const std::int32_t* ids;
    int first, count, per_row;
};

// A matrix and what it makes of rows of x.
struct Layer {
    const std::uint8_t* weight;  // packed (contract/packed.h), 16-byte aligned
    int rows;
    float* out;         // [tokens, rows]
    const float* bias;  // [rows], or null

    // A block of threads has 32 rows of a wide panel, or a panel of 16.
    KARAT_HOST KARAT_INLINE int num_groups() const { return pieces(rows, static_cast<int>(kGroupRows)); }
    KARAT_HOST KARAT_INLINE int num_blocks() const { return num_groups() / 4 * 2 + num_groups() % 4; }
};

inline constexpr int kMostBeside = 3;

// Layers of one x, side by side: out[t, r] = (the sum over columns + bias[r]) + residual[t, r].
struct LinearShape {
    Layer layers[kMostBeside];
    int ends[kMostBeside];  // of their blocks of threads, counted over all
    int num_layers;
    int columns, tokens;
    const float* residual;  // as out, or null
    int num_leaves;         // a power of two
    int leaf_ends[kMaxLeaves];
    bool keeps_leaves;  // out is [tokens, leaves, rows], without bias and residual
    Chosen chosen;

    void add(const Layer& layer) {
        layers[num_layers] = layer;
        ends[num_layers] = num_blocks() + layer.num_blocks();
        ++num_layers;
    }
    int num_blocks() const { return num_layers ? ends[num_layers - 1] : 0; }

    // The row of x.
    KARAT_INLINE int x_row(int token) const { return chosen.matrices ? token / chosen.per_row : token; }
};

// x [tokens, heads, head_dim]; cos and sin are [positions, half].
struct RopeShape {
    const float* x;
    const std::int32_t* positions;
    const float *cos, *sin;
    float* out;
    int tokens, heads, head_dim, half;
};

// Of each row the sums of squares of q and of k, along the tree: out [rows, 2]. A row of a part is as long as its last
// leaf ends; its numbers before `first` do not count.
struct SquareSumsShape {
    struct Part {
        const float* x;
        int first, ends[kMaxLeaves];
    } parts[2];
    int rows, num_leaves;  // a power of two
    float* out;
};

// The experts of each row of logits [rows, experts], as Routing says: ids and weights [rows, chosen].
struct RouteShape {
    const float* logits;
    int rows, experts;
    Routing how;
    float* scratch;  // [rows, 3, experts]
    std::int32_t* ids;
    float* weights;
};

struct BiasesShape {
    Chosen chosen;
    float* pairs;         // [count of ids, columns]: products
    const float* biases;  // [experts, columns]
    int num_pairs, columns;
};

// The leaves of a sum over experts (ExpertLeaves in plan/ops/ops.h).
struct ExpertLeaves {
    bool by_columns;
    int count;  // a power of two
    int ends[kMaxLeaves];
};

struct ExpertsShape {
    Chosen chosen;
    int rows, columns;
    const float* pairs;    // what each row's experts give: [rows, chosen.per_row, columns], by columns with leaves
    const float* weights;  // [rows, chosen.per_row]
    const float* biases;   // by columns, [experts, columns] or null: what experts give to the root
    ExpertLeaves leaves;
    float* out;  // [rows, columns]
};

struct AttentionShape {
    CacheView cache;
    int first_token, num_tokens;  // those of the launch
    int max_blocks, block_size, num_splits;
    const std::int32_t *positions, *query_starts, *block_tables;
    const float* q;  // [tokens, heads, head_dim]
    float* parts;    // [tokens of the launch, heads, num_splits, head_dim, then total and top]
    float* out;      // [tokens, heads, head_dim]
    int num_heads, group_heads, first_head;
    float scale, cap;    // cap 0: none
    const float* sinks;  // null, or [heads]
    int window;          // 0: all
    float* scores;  // null, or [heads, tokens of sequence score_seq, score_context] of scaled scores, for observers
    int score_seq, score_context;

    KARAT_HOST KARAT_INLINE int head_dim() const { return static_cast<int>(cache.head_dim); }
    // The visible keys of a token: begin … end - 1.
    KARAT_INLINE int end(int token) const { return positions[token] + 1; }
    KARAT_INLINE int begin(int token) const {
        const int all = end(token);
        return window && window < all ? all - window : 0;
    }
    KARAT_INLINE float* part(int token, int head, int split) const {
        const std::size_t at = (static_cast<std::size_t>(token - first_token) * num_heads + head) * num_splits + split;
        return parts + at * (head_dim() + 2);
    }
    KARAT_INLINE float* score(int token, int seq, int head, int position) const {
        const int first = query_starts[seq], new_tokens = query_starts[seq + 1] - first;
        return scores + (static_cast<std::size_t>(head) * new_tokens + (token - first)) * score_context + position;
    }
};

// Ranks of a row that one block of threads sorts, and the most that it leaves of them.
inline constexpr int kRankedAtOnce = 4096, kMostLargest = 1024;

// A convolution over the last tokens of each sequence (ConvArgs in contract/kernels.h). A slot of the state has the
// taps - 1 rows before a step, the oldest first; a sequence reads slot reads[seq], or zeros where that is -1, and
// writes slot writes[seq].
struct ConvShape {
    const float *x, *weight, *bias;  // [tokens, channels], [channels, taps], [channels] or null
    float* state;                    // [slots, taps - 1, channels]
    const std::int32_t *query_starts, *reads, *writes;
    int tokens, seqs, taps, channels;
    bool silu;
    float* out;
};

// The gated delta rule (DeltaRuleArgs in contract/kernels.h), with slots as above.
struct DeltaRuleShape {
    const float *q, *k, *v, *decay, *beta;
    float* state;  // [slots, heads, k_dim, v_dim]
    const std::int32_t *query_starts, *reads, *writes;
    const std::int32_t* key_head_of;  // [heads]
    int seqs, key_heads, heads, k_dim, v_dim;
    float* out;
};

struct LargestShape {
    const float* x;  // [rows, columns], all finite
    int rows, columns;
    const std::uint64_t* ranks;  // [rows, count], or null: those of x, whose columns are as many
    int count;
    int kept;            // a power of two
    std::uint64_t* out;  // [rows, pieces, kept] ranks; of one piece an index and above it the bits of its number
};

}  // namespace karat::gpu
