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

// Whether two panels are read side by side. Intel's cores read two streams faster than one, and ahead in each by themselves,
// but only to the end of a page: so far ahead the first lines of the next one must be asked for.
#if defined(KARAT_TWO_PORTS)
inline constexpr bool kPairs = true;
#else
inline constexpr bool kPairs = false;
#endif
inline constexpr std::size_t kPageAhead = 3072;
inline constexpr int kPageLines = 8;
// What is used up so fast that reading ahead comes late: every line besides, so many bytes before.
template <class Fmt>
inline constexpr std::size_t kEachAhead = 0;
template <>
inline constexpr std::size_t kEachAhead<F32> = 512;
template <>
inline constexpr std::size_t kEachAhead<BF16> = 1024;
template <>
inline constexpr std::size_t kEachAhead<Q8_0> = 1024;

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

// What a thread reads at a time: a panel of G groups, or two panels of kPanelGroups, a stream of memory each.
template <class Fmt, int G>
struct Panels {
    static constexpr int kEach = G < static_cast<int>(kPanelGroups) ? G : static_cast<int>(kPanelGroups);
    static constexpr int kStreams = G / kEach;
    static constexpr std::size_t kStep = static_cast<std::size_t>(kEach) * kGroupRows * Fmt::kBytes;  // to the next block
    const std::uint8_t* w;
    const std::uint8_t* end;  // of the (first) panel
    std::size_t apart = 0;    // the second panel from the first, and the next two from these

    KARAT_INLINE const std::uint8_t* stream(int g) const { return g < kEach ? w : w + apart; }
    KARAT_INLINE Block block(int g) const { return block_of<Fmt>(stream(g), g % kEach, kEach); }
    KARAT_INLINE f32x16 floats(int g) const { return Fmt::read(stream(g) + g % kEach * kLanes * Fmt::kBytes); }
    KARAT_INLINE void fetch(std::size_t at, std::size_t bytes) const {
        for (std::size_t line = 0; line < bytes; line += 64)
            for (int i = 0; i < kStreams; ++i) prefetch(stream(i * kEach) + at + line);
    }
    KARAT_INLINE void fetch_far(std::size_t at, std::size_t bytes) const {  // as fetch, into the second-level cache
        for (std::size_t line = 0; line < bytes; line += 64)
            for (int i = 0; i < kStreams; ++i) prefetch_far(stream(i * kEach) + at + line);
    }

    // Where the next `bytes` of a stream lead into a new page of 4 KiB, kPageAhead further on, its first lines come near; as
    // do those of the panel that is read after this one.
    KARAT_INLINE void fetch_page(std::size_t at, std::size_t bytes) const {
        for (int i = 0; i < kStreams; ++i) {
            const std::uint8_t* ahead = stream(i * kEach) + at + kPageAhead;
            const std::uint8_t* const last = end + i * apart;
            const std::uint8_t* first = last + apart;
            if (ahead >= last) ahead += apart;
            const std::uint8_t* const page = ahead - reinterpret_cast<std::uintptr_t>(ahead) % 4096;
            if (ahead < first || page > first) first = page;
            if (static_cast<std::size_t>(ahead - first) < bytes)
                for (int line = 0; line < kPageLines; ++line) prefetch_far(first + 64 * line);
        }
    }
};

template <class Fmt, int G>
KARAT_INLINE void leaf_of_floats(Panels<Fmt, G>& w, const float* x, std::size_t count, f32x16 (&sum)[G]) {
    for (std::size_t k = 0; k < count; ++k, w.w += w.kStep) {
#if defined(KARAT_TWO_PORTS)
        w.fetch_page(0, w.kStep);
        if constexpr (kEachAhead<Fmt> > 0) w.fetch(kEachAhead<Fmt>, w.kStep);
#else
        w.fetch(kPrefetch, w.kStep);
#endif
        const f32x16 value = broadcast(x + k);
        for (int g = 0; g < G; ++g) sum[g] = fma(w.floats(g), value, sum[g]);
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
KARAT_INLINE void end_sub_block(const Panels<Fmt, G>& w, int sub, const float* x_sums, std::size_t column,
                                const f32x16 (&part)[G], f32x16 (&sum)[G]) {
    for (int g = 0; g < G; ++g) sum[g] = fma(part[g], Fmt::scale(w.block(g), sub), sum[g]);
    if constexpr (Fmt::kHasMinimum) {
        const f32x16 total = set1(sum_of_x<Fmt::kSub>(x_sums, column / Fmt::kSub));
        for (int g = 0; g < G; ++g) sum[g] = fma(total, Fmt::minimum(w.block(g), sub), sum[g]);
    }
}

// Before each sub-block. Zen 4 takes the lines of a whole block at once, Zen 3 would wait for 144 of them.
template <class Fmt, int G>
KARAT_INLINE void prefetch_sub_block(const Panels<Fmt, G>& w, int sub) {
    constexpr std::size_t step = Panels<Fmt, G>::kStep, share = step * Fmt::kSub / Fmt::kColumns;
    [[maybe_unused]] const std::size_t at = static_cast<std::size_t>(sub) * share;
#if defined(KARAT_TWO_PORTS)
    w.fetch_page(at, share);
    if constexpr (kEachAhead<Fmt> > 0) w.fetch(kEachAhead<Fmt> + at, share);
#elif defined(KARAT_AVX512)
    if (sub == 0) w.fetch(kPrefetch, step);
#else
    w.fetch(kPrefetch + at, share);
#endif
}

// Most formats read a word of a block of 256 columns for several sub-blocks, and ask for nothing new in between. Where cores
// read ahead by themselves they are given something to fetch before each four columns: what comes a block later, or a
// quarter of one with Q4_K, whose words serve 64 columns.
template <class Fmt, int G>
KARAT_INLINE void prefetch_four([[maybe_unused]] const Panels<Fmt, G>& w, [[maybe_unused]] int sub, [[maybe_unused]] int j) {
#if defined(KARAT_TWO_PORTS)
    constexpr std::size_t step = Panels<Fmt, G>::kStep, four = step * 4 / Fmt::kColumns;
    const std::size_t at = static_cast<std::size_t>(sub * Fmt::kSub + j) / 4 * four;
    if constexpr (std::is_same_v<Fmt, Q4_K>)
        w.fetch(step / 4 + at, four);
    else if constexpr (Fmt::kColumns > Fmt::kSub && !std::is_same_v<Fmt, IQ4_XS>)  // which reads each word once
        w.fetch_far(step + at, four);
#endif
}

template <class Fmt, int G>
KARAT_INLINE void leaf_of_blocks(Panels<Fmt, G>& w, const float* x, const float* x_sums, std::size_t count,
                                 f32x16 (&sum)[G]) {
    const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count; w.w += w.kStep)
        for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub) {
            prefetch_sub_block(w, sub);
            f32x16 part[G];
            const auto code = [&](int g, int j) {
                if (g == 0 && j % 4 == 0) prefetch_four(w, sub, j);
                return codes.code(w.block(g), sub, j / 4, j % 4);
            };
            chain_of_codes<Fmt>(x + k, code, part);
            end_sub_block(w, sub, x_sums, k, part, sum);
        }
}

// The same with bytes first, of up to kBytesFirst columns.
inline constexpr std::size_t kBytesFirst = 256;

template <class Fmt, int G>
KARAT_INLINE void leaf_of_bytes(Panels<Fmt, G>& w, const float* x, const float* x_sums, std::size_t count,
                                f32x16 (&sum)[G]) {
    constexpr std::size_t lanes = G * kGroupRows;
    alignas(64) std::uint8_t bytes[kBytesFirst * lanes + kPackedSlack];
    const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count;) {
        const std::size_t columns = count - k < kBytesFirst ? count - k : kBytesFirst;
        std::uint8_t* to = bytes;
        Panels<Fmt, G> ahead = w;
        for (std::size_t i = 0; i < columns; i += Fmt::kColumns, ahead.w += w.kStep)
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub) {
                prefetch_sub_block(ahead, sub);
#pragma GCC unroll 8
                for (int c = 0; c < Fmt::kSub / 4; ++c)
                    for (int g = 0; g < G; ++g, to += 4 * kGroupRows)
                        istore(to, codes.bytes(ahead.block(g), sub, c));
            }
        Block from{nullptr, bytes, 4 * lanes};
        for (const std::size_t end = k + columns; k < end; w.w += w.kStep)
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub, from.words += Fmt::kSub * lanes) {
                f32x16 part[G];
                chain_of_codes<Fmt>(
                    x + k,
                    [&](int g, int j) {
                        const Block of_group{nullptr, from.words + g * 4 * kGroupRows, from.stride};
                        return stored_field<8>(of_group, j / 4, j % 4, 0, Fmt::Codes::kBytesBias);
                    },
                    part);
                end_sub_block(w, sub, x_sums, k, part, sum);
            }
    }
}

template <class Fmt, int G>
void panels_of_one(const LinearArgs& a, std::size_t panel) {
    Panels<Fmt, G> w{a.weight->panel(panel), a.weight->panel(panel + 1)};
    if constexpr (Panels<Fmt, G>::kStreams == 2) w.apart = static_cast<std::size_t>(w.end - w.w);
    f32x16 levels[3][G], sum[G];
    std::size_t start = 0;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int g = 0; g < G; ++g) sum[g] = zero();
        if constexpr (kBytesBefore<Fmt>)
            leaf_of_bytes(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else if constexpr (kIsBlock<Fmt>)
            leaf_of_blocks(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else
            leaf_of_floats(w, a.x + start, end - start, sum);
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
        std::size_t panel = first;
        if constexpr (kPairs)
            for (const std::size_t wide = a.weight->num_wide(), end = wide < last ? wide : last; panel + 2 <= end; panel += 2)
                panels_of_one<Fmt, 2 * kPanelGroups>(a, panel);
        for (; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups ? panels_of_one<Fmt, kPanelGroups>(a, panel)
                                                          : panels_of_one<Fmt, 1>(a, panel);
    }
};

}  // namespace

void one_token(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_format(a.weight->format, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
