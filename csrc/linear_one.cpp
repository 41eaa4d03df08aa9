// Linear layers for one token: codes go straight from the packed words into the chain.
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Codes of a word are always unrolled together; all of a sub-block only where one token waits for every instruction.
#if defined(__AVX2__)
#define KARAT_UNROLL_SUB_BLOCK _Pragma("GCC unroll 32")
#else
#define KARAT_UNROLL_SUB_BLOCK
#endif

// Whether codes are put together as bytes first, so that there are registers for the sums afterwards: where there are 16,
// and codes lie in several words or in a table.
template <class Fmt>
inline constexpr bool kBytesBefore = [] {
#if defined(KARAT_AVX2)
    if constexpr (kIsBlock<Fmt>) return requires { Fmt::Codes::kBytesBias; };
#endif
    return false;
}();

// Sums that a compiler with 16 registers would rather keep in memory.
template <int G>
KARAT_INLINE void keep_in_registers([[maybe_unused]] f32x16 (&sum)[G]) {
#if defined(KARAT_AVX2)
    if constexpr (G == 4)
        __asm__ volatile("" : "+x"(sum[0].lo), "+x"(sum[0].hi), "+x"(sum[1].lo), "+x"(sum[1].hi), "+x"(sum[2].lo),
                              "+x"(sum[2].hi), "+x"(sum[3].lo), "+x"(sum[3].hi));
#endif
}

template <class Fmt, int G>
KARAT_INLINE void leaf_of_floats(const std::uint8_t*& w, const float* x, std::size_t count, f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kLanes * Fmt::kBytes;
    for (std::size_t k = 0; k < count; ++k, w += step) {
        for (std::size_t line = 0; line < step; line += 64) prefetch(w + kPrefetch + line);
        const f32x16 value = broadcast(x + k);
        for (int g = 0; g < G; ++g) sum[g] = fma(Fmt::read(w + g * kLanes * Fmt::kBytes), value, sum[g]);
    }
}

// A sub-block's chains, of `code(g, j)` for its column j.
template <class Fmt, int G, class Code>
KARAT_INLINE void chain_of_codes(const float* x, const Code& code, f32x16 (&part)[G]) {
    for (int g = 0; g < G; ++g) part[g] = zero();
    KARAT_UNROLL_SUB_BLOCK
    for (int j = 0; j < Fmt::kSub; ++j) {
        const f32x16 value = broadcast(x + j);
        for (int g = 0; g < G; ++g) part[g] = fma(code(g, j), value, part[g]);
        if (Fmt::kSub == Fmt::kColumns && !kBytesBefore<Fmt> && j % 4 == 3) keep_in_registers(part);
    }
}

// Scales and minima of a sub-block, after its codes.
template <class Fmt, int G>
KARAT_INLINE void end_sub_block(const std::uint8_t* w, int sub, const float* x_sums, std::size_t column,
                                const f32x16 (&part)[G], f32x16 (&sum)[G]) {
    for (int g = 0; g < G; ++g) sum[g] = fma(part[g], Fmt::scale(block_of<Fmt>(w, g, G), sub), sum[g]);
    if constexpr (Fmt::kHasMinimum) {
        const f32x16 total = set1(sum_of_x<Fmt::kSub>(x_sums, column / Fmt::kSub));
        for (int g = 0; g < G; ++g) sum[g] = fma(total, Fmt::minimum(block_of<Fmt>(w, g, G), sub), sum[g]);
    }
}

// Before each sub-block. Zen 4 takes the lines of a whole block at once, Zen 3 would wait for 144 of them.
template <class Fmt, int G>
KARAT_INLINE void prefetch_sub_block(const std::uint8_t* w, int sub) {
#if defined(KARAT_AVX512)
    constexpr int parts = 1;
    if (sub != 0) return;
#else
    constexpr int parts = Fmt::kColumns / Fmt::kSub;
#endif
    constexpr std::size_t lines = static_cast<std::size_t>(G) * kGroupRows * Fmt::kBytes / parts;
    for (std::size_t line = 0; line < lines; line += 64) prefetch(w + kPrefetch + static_cast<std::size_t>(sub) * lines + line);
}

template <class Fmt, int G>
KARAT_INLINE void leaf_of_blocks(const std::uint8_t*& w, const float* x, const float* x_sums, std::size_t count,
                                 f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kGroupRows * Fmt::kBytes;
    const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count; w += step)
        for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub) {
            prefetch_sub_block<Fmt, G>(w, sub);
            f32x16 part[G];
            chain_of_codes<Fmt>(
                x + k, [&](int g, int j) { return codes.code(block_of<Fmt>(w, g, G), sub, j / 4, j % 4); }, part);
            end_sub_block<Fmt, G>(w, sub, x_sums, k, part, sum);
        }
}

// The same with bytes first, of up to kBytesFirst columns.
inline constexpr std::size_t kBytesFirst = 256;

template <class Fmt, int G>
KARAT_INLINE void leaf_of_bytes(const std::uint8_t*& w, const float* x, const float* x_sums, std::size_t count,
                                f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kGroupRows * Fmt::kBytes, lanes = G * kGroupRows;
    alignas(64) std::uint8_t bytes[kBytesFirst * lanes + kPackedSlack];
    const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count;) {
        const std::size_t columns = count - k < kBytesFirst ? count - k : kBytesFirst;
        std::uint8_t* to = bytes;
        const std::uint8_t* block = w;
        for (std::size_t i = 0; i < columns; i += Fmt::kColumns, block += step)
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub) {
                prefetch_sub_block<Fmt, G>(block, sub);
#pragma GCC unroll 8
                for (int c = 0; c < Fmt::kSub / 4; ++c)
                    for (int g = 0; g < G; ++g, to += 4 * kGroupRows)
                        istore(to, codes.bytes(block_of<Fmt>(block, g, G), sub, c));
            }
        Block from{nullptr, bytes, 4 * lanes};
        for (const std::size_t end = k + columns; k < end; w += step)
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub, from.words += Fmt::kSub * lanes) {
                f32x16 part[G];
                chain_of_codes<Fmt>(
                    x + k,
                    [&](int g, int j) {
                        const Block of_group{nullptr, from.words + g * 4 * kGroupRows, from.stride};
                        return stored_field<8>(of_group, j / 4, j % 4, 0, Fmt::Codes::kBytesBias);
                    },
                    part);
                end_sub_block<Fmt, G>(w, sub, x_sums, k, part, sum);
            }
    }
}

template <class Fmt, int G>
void panel_of_one(const LinearArgs& a, std::size_t panel) {
    const std::uint8_t* w = a.weight->panel(panel);
    f32x16 levels[3][G], sum[G];
    std::size_t start = 0;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int g = 0; g < G; ++g) sum[g] = zero();
        if constexpr (kBytesBefore<Fmt>)
            leaf_of_bytes<Fmt, G>(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else if constexpr (kIsBlock<Fmt>)
            leaf_of_blocks<Fmt, G>(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else
            leaf_of_floats<Fmt, G>(w, a.x + start, end - start, sum);
        start = end;
        climb(
            leaf, a.num_leaves,
            [&](int level) {
                for (int g = 0; g < G; ++g) sum[g] = levels[level][g] + sum[g];
            },
            [&](int level) {
                for (int g = 0; g < G; ++g) levels[level][g] = sum[g];
            });
    }
    const std::size_t row = a.weight->first_group(panel) * kGroupRows;
    for (int g = 0; g < G; ++g) finish(a, 0, row + static_cast<std::size_t>(g * kLanes), sum[g]);
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    template <class Fmt>
    void run() const {
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups ? panel_of_one<Fmt, kPanelGroups>(a, panel)
                                                          : panel_of_one<Fmt, 1>(a, panel);
    }
};

}  // namespace

void one_token(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_format(a.weight->format, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
