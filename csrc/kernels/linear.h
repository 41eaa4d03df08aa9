// Shared by the linear layers of one, a few and many tokens (kernels.h, LinearArgs).
#pragma once

#include "formats/nibbles.h"
#include "formats/subnormal.h"
#include "kernels/kernels_isa.h"
#include "simd/tile.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Up to this many tokens wide panels go to `few_tokens`; 0: never. kFewTokens: formats that are multiplied column by
// column (on Intel's cores the first tile of many_tokens serves a few). kFewByNibbles: formats that are multiplied by
// nibbles. Stored floats: kTuning.few_float_tokens.
#if defined(KARAT_AVX2)
inline constexpr std::size_t kFewTokens = 8;
#elif defined(KARAT_AVX512) && !defined(KARAT_TWO_PORTS)
inline constexpr std::size_t kFewTokens = 2 * kTuning.direct_rows;
#else
inline constexpr std::size_t kFewTokens = 0;
#endif
#if defined(KARAT_AVX512)
inline constexpr std::size_t kFewByNibbles = kNibbleFewTokens;
#else
inline constexpr std::size_t kFewByNibbles = 0;
#endif

// Compute panels first … last - 1 of a layer; `few_tokens` only wide ones. Functions of two layers compute the same
// panels of both (gate and up), or those of one layer that is given twice. `many_tokens` is for formats that are
// multiplied column by column, `many_tokens_by_nibbles` for the others.
void one_token(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
void one_token_of_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch);
void few_tokens(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
void many_tokens(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
void many_tokens_by_nibbles(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last,
                            float* scratch);

inline constexpr std::size_t kChunk = 128;       // columns
inline constexpr std::size_t kTokenBlock = 516;  // tokens that one unpacked chunk serves
inline constexpr std::size_t kWide = kPanelGroups * kGroupRows;
inline constexpr std::size_t kPrefetch = 3072;  // bytes ahead in a stream of weights
inline constexpr std::size_t kMinSub = 16;      // columns of the smallest sub-block

// Floats of scratch: an unpacked chunk, its scales and minima, running sums of a token block, finished leaves. (For one
// token the whole may hold x, scaled: subnormal.h.)
struct LinearScratch {
    float* chunk;   // [kChunk, lanes of the panel]
    float* scales;  // [kChunk / kMinSub, lanes]
    float* minima;  // as scales
    float* sums;    // [kTokenBlock, kWide]
    float* levels;  // [3, kTokenBlock, kWide]

    static constexpr std::size_t kFloats = kChunk * kWide + 2 * (kChunk / kMinSub * kWide) + 4 * kTokenBlock * kWide;
    KARAT_INLINE explicit LinearScratch(float* base)
        : chunk(base), scales(chunk + kChunk * kWide), minima(scales + kChunk / kMinSub * kWide),
          sums(minima + kChunk / kMinSub * kWide), levels(sums + kTokenBlock * kWide) {}
};

// The same by nibbles: a table of products, sums of x over a sub-block, and for some rows sums and finished leaves.
inline constexpr std::size_t kTable = 24;  // nibbles times vectors of tokens, 1 KiB each
inline constexpr std::size_t kNibbleTokens = kTable / 8 * kLanes;
struct NibbleScratch {
    float* products;  // [kTable, kProducts, kLanes]
    float* totals;    // [kNibbleTokens]
    float* sums[4];   // [rows of 2 * kNibblePanels, kNibbleTokens]

    static constexpr std::size_t kTableFloats = kTable * kProducts * kLanes;
    static constexpr std::size_t kSums = 2 * kNibblePanels * kWide * kNibbleTokens;
    static constexpr std::size_t kFloats = kTableFloats + kNibbleTokens + 4 * kSums;
    KARAT_INLINE explicit NibbleScratch(float* base) : products(base), totals(products + kTableFloats) {
        for (std::size_t i = 0; i < 4; ++i) sums[i] = totals + kNibbleTokens + i * kSums;
    }
};

// A panel of a layer.
struct Place {
    const LinearArgs& args;
    std::size_t panel;

    KARAT_INLINE const std::uint8_t* begin() const { return args.weight->panel(panel); }
    KARAT_INLINE const std::uint8_t* end() const { return args.weight->panel(panel + 1); }
    KARAT_INLINE std::size_t groups() const { return args.weight->panel_groups(panel); }
    KARAT_INLINE std::size_t row(int group) const {
        return (args.weight->first_group(panel) + static_cast<std::size_t>(group)) * kGroupRows;
    }
};

// Adds leaf `leaf` to the fixed tree of leaves. add(level): add the sum that waits at `level`, as the left operand, to
// the current sum. keep(level): the current sum waits at `level` for its right sibling. After the last leaf the current
// sum is the root.
template <class Add, class Keep>
KARAT_INLINE void add_along_tree(std::size_t leaf, std::size_t num_leaves, const Add& add, const Keep& keep) {
    int level = 0;
    for (; (leaf >> level) & 1; ++level) add(level);
    if (leaf + 1 < num_leaves) keep(level);
}

// Adds bias and residual to a finished sum and stores it as rows row … row + 15 of a token.
KARAT_INLINE void write_result(const LinearArgs& a, std::size_t token, std::size_t row, f32x16 sum) {
    const std::size_t left = a.weight->rows - row;
    const int n = left < kLanes ? static_cast<int>(left) : kLanes;
    if (a.bias) sum = sum + load_first(a.bias + row, n);
    if (a.residual) {
        const float* residual = a.residual + token * a.out_stride + row;
        sum = sum + load_first(residual, n);
    }
    store_first(a.out + token * a.out_stride + row, sum, n);
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
        const auto level_of = [&](int level) { return levels + static_cast<std::size_t>(level) * kTokenBlock * kWide; };
        add_along_tree(
            leaf, a.num_leaves,
            [&](int level) {
                const float* left = level_of(level);
                for (std::size_t i = first * kWide; i < last * kWide; i += kLanes)
                    store(sums + i, load(left + i) + load(sums + i));
            },
            [&](int level) {
                float* left = level_of(level);
                for (std::size_t i = first * kWide; i < last * kWide; i += kLanes) store(left + i, load(sums + i));
            });
        if (leaf + 1 < a.num_leaves) return;
        const std::size_t row = a.weight->first_group(panel) * kGroupRows;
        for (std::size_t t = first; t < last; ++t)
            for (std::size_t g = 0; g < kGroups; ++g)
                write_result(a, token + t, row + g * kLanes, load(sums + t * kWide + g * kLanes));
    }
};

template <class Fmt>
inline constexpr bool kIsBlock = requires { typename Fmt::Codes; };

template <class Fmt>
inline constexpr bool kHasMinimum = [] {
    if constexpr (kIsBlock<Fmt>) return Fmt::kHasMinimum;
    return false;
}();

// Whether it is multiplied by nibbles (nibbles.h).
template <class Fmt>
inline constexpr bool kByNibbles = requires { Fmt::Codes::kWords; };

// The sum of x over sub-block `index`, of sums over 16 columns.
template <int kSub>
KARAT_INLINE float sum_of_x(const float* sums, std::size_t index) {
    if constexpr (kSub == 32) return sums[2 * index] + sums[2 * index + 1];
    return sums[index];
}

// Calls f with the type that the kernels know a format by.
template <class Fmt, Format format, class F>
KARAT_INLINE void run_as(const F& f) {
    constexpr FormatInfo info = kFormats[static_cast<int>(format)];
    static_assert(Fmt::kBytes == info.block_bytes && kHasMinimum<Fmt> == info.has_minimum &&
                  kByNibbles<Fmt> == info.by_nibbles);
    f.template run<Fmt>();
}
template <class F>
KARAT_INLINE void with_format(Format format, const F& f) {
    switch (format) {
        case Format::f32: return run_as<F32, Format::f32>(f);
        case Format::f16: return run_as<F16, Format::f16>(f);
        case Format::bf16: return run_as<BF16, Format::bf16>(f);
        case Format::q8_0: return run_as<Q8_0, Format::q8_0>(f);
        case Format::q4_0: return run_as<Q4_0, Format::q4_0>(f);
        case Format::q4_1: return run_as<Q4_1, Format::q4_1>(f);
        case Format::q5_0: return run_as<Q5_0, Format::q5_0>(f);
        case Format::q5_1: return run_as<Q5_1, Format::q5_1>(f);
        case Format::q2_k: return run_as<Q2_K, Format::q2_k>(f);
        case Format::q3_k: return run_as<Q3_K, Format::q3_k>(f);
        case Format::q4_k: return run_as<Q4_K, Format::q4_k>(f);
        case Format::q5_k: return run_as<Q5_K, Format::q5_k>(f);
        case Format::q6_k: return run_as<Q6_K, Format::q6_k>(f);
        case Format::iq4_nl: return run_as<IQ4_NL, Format::iq4_nl>(f);
        case Format::iq4_xs: return run_as<IQ4_XS, Format::iq4_xs>(f);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE
