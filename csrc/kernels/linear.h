// Shared by the linear layers of one, a few and many tokens (kernels.h, LinearArgs).
#pragma once

#include "formats/formats.h"
#include "kernels/kernels_isa.h"
#include "simd/tile.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Compute panels first … last - 1 of a layer of stored floats; `few_tokens` only wide ones. one_token_of_both computes
// the same panels of two layers.
void one_token(const LinearArgs& args, std::size_t first, std::size_t last);
void one_token_of_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last);
void few_tokens(const LinearArgs& args, std::size_t first, std::size_t last);
void many_tokens(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);

inline constexpr std::size_t kTokenBlock = 516;  // tokens that one unpacked chunk serves
inline constexpr std::size_t kWide = kPanelGroups * kGroupRows;

// Adds leaf `leaf` to the fixed tree of leaves. add(level): add the sum that waits at `level`, as the left operand, to
// the current sum. keep(level): the current sum waits at `level` for its right sibling. After the last leaf the current
// sum is the root.
template <class Add, class Keep>
KARAT_INLINE void add_along_tree(std::size_t leaf, std::size_t num_leaves, const Add& add, const Keep& keep) {
    int level = 0;
    for (; (leaf >> level) & 1; ++level) add(level);
    if (leaf + 1 < num_leaves) keep(level);
}

// The leaves of a panel and their tree, for T tokens and G groups whose sums stay in registers: add_leaf(start, end)
// adds columns start … end - 1 to `sum`, and write(leaf) puts `sum` where it goes: the root, or leaves that stay apart.
template <int T, int G, class AddLeaf, class Write>
KARAT_INLINE void sum_leaves(const LinearArgs& a, f32x16 (&sum)[T][G], const AddLeaf& add_leaf, const Write& write) {
    f32x16 levels[3][T][G];
    std::size_t start = a.first_column;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < G; ++g) sum[t][g] = zero();
        add_leaf(start, end);
        start = end;
        if (a.leaf_stride == 0)
            add_along_tree(
                leaf, a.num_leaves,
                [&](int level) __attribute__((always_inline)) {
                    for (int t = 0; t < T; ++t)
                        for (int g = 0; g < G; ++g) sum[t][g] = levels[level][t][g] + sum[t][g];
                },
                [&](int level) __attribute__((always_inline)) {
                    for (int t = 0; t < T; ++t)
                        for (int g = 0; g < G; ++g) levels[level][t][g] = sum[t][g];
                });
        if (a.leaf_stride > 0 || leaf + 1 == a.num_leaves) write(leaf);
    }
}

// Stores a finished sum, or a leaf that stays apart, as rows row … row + 15 of a token: with bias and residual, or
// added to what it is a term of.
KARAT_INLINE void write_result(const LinearArgs& a, std::size_t leaf, std::size_t token, std::size_t row, f32x16 sum) {
    const std::size_t left = a.weight->rows - row;
    const int n = left < kLanes ? static_cast<int>(left) : kLanes;
    if (a.bias) sum = sum + load_first(a.bias + row, n);
    if (a.residual) {
        const float* residual = a.residual + token * a.out_stride + row;
        sum = sum + load_first(residual, n);
    }
    float* const to = a.out + leaf * a.leaf_stride + (a.sums_of ? a.sums_of[token] : token) * a.out_stride + row;
    if (a.sums_of) sum = fma(set1(a.weights[token]), sum, load_first(to, n));
    store_first(to, sum, n);
}

// The same of the tokens from `first` on.
KARAT_INLINE LinearArgs from_token(LinearArgs a, std::size_t first) {
    a.first_row += first;
    if (a.residual) a.residual += first * a.out_stride;
    if (a.sums_of) {
        a.sums_of += first;
        a.weights += first;
    } else {
        a.out += first * a.out_stride;
    }
    return a;
}

// Where a panel of kGroups groups begins, from first_column on.
template <class Fmt, std::size_t kGroups>
KARAT_INLINE const std::uint8_t* begin_of(const LinearArgs& a, std::size_t panel) {
    return a.weight->panel(panel) + a.first_column / Fmt::kColumns * (kGroups * kGroupRows * Fmt::kBytes);
}

// Running sums of up to kTokenBlock tokens of a panel of kGroups groups, and the finished leaves that wait for their
// siblings.
template <std::size_t kGroups>
struct LeafSums {
    float* sums;    // [kTokenBlock, kWide]
    float* levels;  // [3, kTokenBlock, kWide]

    // Of tokens first … last - 1 of the block, which begins at `token`.
    KARAT_INLINE void begin(std::size_t first, std::size_t last) const {
        for (std::size_t i = first * kWide; i < last * kWide; i += kLanes) store(sums + i, zero());
    }
    KARAT_INLINE void end(const LinearArgs& a, std::size_t panel, std::size_t leaf, std::size_t token,
                          std::size_t first, std::size_t last) const {
        if (a.leaf_stride == 0) {
            add_along_tree(
                leaf, a.num_leaves,
                [&](int level) __attribute__((always_inline)) {
                    const float* left = at_level(level);
                    for (std::size_t i = first * kWide; i < last * kWide; i += kLanes)
                        store(sums + i, load(left + i) + load(sums + i));
                },
                [&](int level) __attribute__((always_inline)) {
                    float* left = at_level(level);
                    for (std::size_t i = first * kWide; i < last * kWide; i += kLanes) store(left + i, load(sums + i));
                });
            if (leaf + 1 < a.num_leaves) return;
        }
        const std::size_t row = a.weight->first_group(panel) * kGroupRows;
        for (std::size_t t = first; t < last; ++t)
            for (std::size_t g = 0; g < kGroups; ++g)
                write_result(a, leaf, token + t, row + g * kLanes, load(sums + t * kWide + g * kLanes));
    }

private:
    KARAT_INLINE float* at_level(int level) const {
        return levels + static_cast<std::size_t>(level) * kTokenBlock * kWide;
    }
};

template <class Fmt>
inline constexpr bool kIsBlock = requires { typename Fmt::Codes; };
// Floats that share a scale (formats.h).
template <class Fmt>
inline constexpr bool kIsScaled = requires { Fmt::kWordColumns; };

// Adds a packed block of floats that share a scale to the sums of T tokens and G groups. Group g of its scales begins
// at at(g), and words are `step` bytes apart. before_word(i) is called before word i is read.
template <class Fmt, int T, int G, class At, class BeforeWord>
KARAT_INLINE void add_block(f32x16 (&sum)[T][G], const At& at, std::size_t step, const float* x, std::size_t x_stride,
                            const BeforeWord& before_word) {
    f32x16 part[T][G];
    for (int t = 0; t < T; ++t)
        for (int g = 0; g < G; ++g) part[t][g] = zero();
    for (std::size_t i = 0; i < Fmt::kWords; ++i, x += Fmt::kWordColumns) {
        before_word(i);
        i32x16 word[G];
        for (int g = 0; g < G; ++g) word[g] = iload(at(g) + (i + 1) * step);
        for (int j = 0; j < Fmt::kWordColumns; ++j) {
            f32x16 weight[G];
            for (int g = 0; g < G; ++g) weight[g] = Fmt::number(word[g], j);
            for (int t = 0; t < T; ++t) {
                const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * x_stride + j);
                for (int g = 0; g < G; ++g) part[t][g] = fma(weight[g], value, part[t][g]);
            }
        }
    }
    for (int g = 0; g < G; ++g) {
        const f32x16 scale = load(reinterpret_cast<const float*>(at(g)));
        for (int t = 0; t < T; ++t) sum[t][g] = fma(part[t][g], scale, sum[t][g]);
    }
}

// Calls f.run<Fmt>() with the type that the kernels know a format by: of floats, or of blocks.
#define KARAT_RUN(name, ...) \
    case Format::name: return f.template run<name>();
template <class F>
KARAT_INLINE void with_floats(Format format, const F& f) {
    switch (format) {
        KARAT_FLOAT_FORMATS(KARAT_RUN)
        KARAT_SCALED_FORMATS(KARAT_RUN)
        default: return;
    }
}
template <class F>
KARAT_INLINE void with_blocks(Format format, const F& f) {
    switch (format) {
        KARAT_BLOCK_FORMATS(KARAT_RUN)
        default: return;
    }
}
#undef KARAT_RUN

}  // namespace karat::KARAT_ISA_NAMESPACE
