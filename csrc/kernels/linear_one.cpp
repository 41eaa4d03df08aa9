// Linear layers for one token: codes are multiplied as they are read, without an unpacked copy.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Codes of a word are always unrolled together; all of a sub-block only where one token waits for every instruction.
#if defined(__AVX2__)
#define KARAT_UNROLL_SUB_BLOCK _Pragma("GCC unroll 32")
#else
#define KARAT_UNROLL_SUB_BLOCK
#endif

// Whether two panels are read side by side. Intel's cores read two streams faster than one. They read ahead in each by
// themselves, but only to the end of a page: the first lines of the next page are prefetched kPageAhead bytes before.
// (Codes as subnormal numbers need a second panel, too: the chains of one just fill the multiply-add's latency.)
#if defined(KARAT_TWO_PORTS)
inline constexpr bool kTwoStreams = true;
#else
inline constexpr bool kTwoStreams = false;
#endif
inline constexpr std::size_t kPageAhead = 3072;
inline constexpr int kPageLines = 8;
// Their own reading ahead comes late. So every line is prefetched as well: kLinesAhead bytes before it is read, or
// kBlocksAhead blocks in formats whose blocks have several sub-blocks.
inline constexpr std::size_t kLinesAhead = 2048;
inline constexpr std::size_t kBlocksAhead = kTwoStreams ? 1 : 2;

// Whether codes are first assembled as bytes in memory. With 16 registers, and codes that lie in several words or in a
// table, there are no registers for the sums at the same time.
template <class Fmt>
inline constexpr bool kBytesBefore = [] {
#if defined(KARAT_AVX2)
    if constexpr (kIsBlock<Fmt>) return requires { Fmt::Codes::kBytesBias; };
#endif
    return false;
}();

// Holds sums in registers: with 16 of them a compiler would keep the sums in memory.
template <int G>
KARAT_INLINE void keep_in_registers([[maybe_unused]] f32x16 (&sum)[G]) {
#if defined(KARAT_AVX2)
    if constexpr (G == 4)
        __asm__ volatile(""
                         : "+x"(sum[0].lo), "+x"(sum[0].hi), "+x"(sum[1].lo), "+x"(sum[1].hi), "+x"(sum[2].lo),
                           "+x"(sum[2].hi), "+x"(sum[3].lo), "+x"(sum[3].hi));
#endif
}

// The task of a thread: one panel of G groups, or two panels of kPanelGroups. Each panel is a stream of memory.
template <class Fmt, int G>
struct Panels {
    static constexpr int kEach = G < static_cast<int>(kPanelGroups) ? G : static_cast<int>(kPanelGroups);
    static constexpr int kStreams = G / kEach;
    static constexpr std::size_t kStep =
        static_cast<std::size_t>(kEach) * kGroupRows * Fmt::kBytes;  // to the next block
    const std::uint8_t* w;
    const std::uint8_t* end;   // of the (first) panel
    std::ptrdiff_t apart = 0;  // the second panel from the first
    std::size_t skipped = 0;   // between the end of a panel and the one that is read after it

    KARAT_INLINE const std::uint8_t* stream(int g) const { return g < kEach ? w : w + apart; }
    KARAT_INLINE Block block(int g) const { return block_of<Fmt>(stream(g), g % kEach, kEach); }
    KARAT_INLINE f32x16 floats(int g) const { return Fmt::read(stream(g) + g % kEach * kLanes * Fmt::kBytes); }
    KARAT_INLINE void fetch(std::size_t at, std::size_t bytes) const {
        for (std::size_t line = 0; line < bytes; line += 64)
            for (int i = 0; i < kStreams; ++i) prefetch(stream(i * kEach) + at + line);
    }

    // Offset of the byte that a stream reads `bytes` later: after the end of a panel it goes on with the panel that is
    // read next.
    KARAT_INLINE std::size_t ahead(std::size_t bytes) const { return w + bytes < end ? bytes : bytes + skipped; }

    // If the next `bytes` of a stream, kPageAhead further on, enter a new page of 4 KiB, its first lines are
    // prefetched. So are the first lines of the panel that is read next.
    KARAT_INLINE void fetch_page(std::size_t at, std::size_t bytes) const {
        for (int i = 0; i < kStreams; ++i) {
            const std::uint8_t* ahead = stream(i * kEach) + at + kPageAhead;
            const std::uint8_t* const last = end + i * apart;
            const std::uint8_t* first = last + skipped;
            if (ahead >= last) ahead += skipped;
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
#endif
        w.fetch(kTuning.float_bytes_ahead, w.kStep);
        const f32x16 value = broadcast(x + k);
        for (int g = 0; g < G; ++g) sum[g] = fma(w.floats(g), value, sum[g]);
    }
}

// Computes a sub-block's chains by columns: code(g, j) is the code of group g, column j; done(j) is called after column
// j.
template <class Fmt, int G, class Code, class Done>
KARAT_INLINE void chain_of_codes(const float* x, const Code& code, const Done& done, f32x16 (&part)[G]) {
    for (int g = 0; g < G; ++g) part[g] = zero();
    KARAT_UNROLL_SUB_BLOCK
    for (int j = 0; j < Fmt::kSub; ++j) {
        const f32x16 value = broadcast(x + j);
        for (int g = 0; g < G; ++g) part[g] = fma(code(g, j), value, part[g]);
        done(j);
        if (Fmt::kSub == Fmt::kColumns && !kBytesBefore<Fmt> && j % 4 == 3) keep_in_registers(part);
    }
}

// The nibbles of all groups of a sub-block, for calls in the order of nibbles.
template <class Fmt, int G>
class NibblesInTurn {
public:
    KARAT_INLINE i32x16 of(const Panels<Fmt, G>& w, int sub, int i, int g) {
#if defined(KARAT_AVX512) && !defined(KARAT_TWO_PORTS)
        // Bytes that nibbles i and i + 4 lie in are kept: loads are what these cores wait for.
        if (i < 4) bytes_[i][g] = in_register(nibbles_of<Fmt>(w.block(g), sub, nibble(i)));
        if (i < 8) return i < 4 ? bytes_[i][g] : bytes_[i - 4][g] >> 4;
#endif
        return nibbles_of<Fmt>(w.block(g), sub, nibble(i));
    }

private:
    i32x16 bytes_[4][G];
};

// Computes a sub-block's chains by nibbles; done(i) is called after nibble i.
template <class Fmt, int G, class Done>
KARAT_INLINE void chain_of_nibbles(const Panels<Fmt, G>& w, int sub, const float* x, const Done& done,
                                   f32x16 (&part)[G]) {
    NibblesInTurn<Fmt, G> nibbles;
    for (int g = 0; g < G; ++g) part[g] = zero();
    KARAT_UNROLL_SUB_BLOCK
    for (int i = 0; i < kNibbles<Fmt>; ++i) {
        const auto number = [&](int column) { return broadcast(x + column); };
        const f32x16 products =
            product(nibble(i), number, [](const float (&values)[kProducts]) { return load(values); });
        for (int g = 0; g < G; ++g) part[g] = part[g] + pick(products, nibbles.of(w, sub, i, g));
        if (i % 2)
            for (int g = 0; g < G; ++g) compute_now(part[g]);  // or they would be added last, and wait in memory
        done(i);
    }
}

// Whether a block has several sub-blocks, each with a scale.
template <class Fmt>
inline constexpr bool kManyScales = Fmt::kColumns > Fmt::kSub;

// The parts of a block from which the scales of all its sub-blocks are computed, read once, for each group.
template <class Fmt, int G>
struct ScalesOf {
    typename Fmt::Scales each[kManyScales<Fmt> ? G : 1];

    explicit KARAT_INLINE ScalesOf(const Panels<Fmt, G>& w) {
        if constexpr (kManyScales<Fmt>)
            for (int g = 0; g < G; ++g) each[g] = Fmt::Scales::of(w.block(g));
    }
    KARAT_INLINE typename Fmt::Scales of(const Panels<Fmt, G>& w, int g) const {
        if constexpr (kManyScales<Fmt>) return each[g];
        return Fmt::Scales::of(w.block(g));
    }
};

// Scales and minima of a sub-block, after its codes. kScaled: those of scaled x (subnormal.h).
template <bool kScaled = false, class Fmt, int G>
KARAT_INLINE void end_sub_block(const Panels<Fmt, G>& w, const ScalesOf<Fmt, G>& scales, int sub, const float* x_sums,
                                std::size_t column, const f32x16 (&part)[G], f32x16 (&sum)[G]) {
    for (int g = 0; g < G; ++g) {
        f32x16 scale = scales.of(w, g).scale(w.block(g), sub);
        if constexpr (kScaled) scale = scale * set1(kPartScale);
        sum[g] = fma(part[g], scale, sum[g]);
    }
    if constexpr (Fmt::kHasMinimum) {
        const f32x16 total = set1(sum_of_x<Fmt::kSub>(x_sums, column / Fmt::kSub));
        for (int g = 0; g < G; ++g) sum[g] = fma(total, scales.of(w, g).minimum(w.block(g), sub), sum[g]);
    }
}

// Whether lines are prefetched evenly, a few after each column. Prefetched all at once they take the buffers that loads
// need. Where a core waits for arithmetic (AVX2, most formats), spreading them costs more than it gains.
template <class Fmt>
#if defined(KARAT_AVX512)
inline constexpr bool kEvenly = true;
#elif defined(KARAT_AVX2)
inline constexpr bool kEvenly = std::is_same_v<Fmt, Q8_0>;
#else
inline constexpr bool kEvenly = false;
#endif

// Prefetches before a sub-block.
template <class Fmt, int G>
KARAT_INLINE void prefetch_sub_block([[maybe_unused]] const Panels<Fmt, G>& w, [[maybe_unused]] int sub) {
    constexpr std::size_t share = Panels<Fmt, G>::kStep * Fmt::kSub / Fmt::kColumns;
    [[maybe_unused]] const std::size_t at = static_cast<std::size_t>(sub) * share;
#if defined(KARAT_TWO_PORTS)
    if constexpr (Fmt::kColumns == Fmt::kSub) w.fetch_page(at, share);
#else
    if constexpr (!kEvenly<Fmt>) w.fetch(kPrefetch + at, share);
#endif
}

// Prefetches after each step of a sub-block (a column, a nibble): its share of the lines. Most formats read the words
// of a block of 256 columns out of order, so whole blocks are prefetched, into the second-level cache.
template <int kSteps, class Fmt, int G>
KARAT_INLINE void prefetch_step([[maybe_unused]] const Panels<Fmt, G>& w, [[maybe_unused]] int sub,
                                [[maybe_unused]] int step) {
    if constexpr (kEvenly<Fmt>) {
        using P = Panels<Fmt, G>;
        constexpr std::size_t share = P::kStep * Fmt::kSub / Fmt::kColumns, lines = P::kStreams * ((share + 63) / 64);
        constexpr bool block_ahead = Fmt::kColumns > Fmt::kSub;
        constexpr std::size_t ahead = block_ahead ? kBlocksAhead * P::kStep : kLinesAhead;
        const std::size_t at = w.ahead(ahead) + static_cast<std::size_t>(sub) * share;
        const auto before = [](int n) { return static_cast<std::size_t>(n) * lines / kSteps; };
        for (std::size_t i = before(step); i < before(step + 1); ++i) {
            const std::uint8_t* line = w.stream(i % P::kStreams * P::kEach) + at + i / P::kStreams * 64;
            block_ahead ? prefetch_far(line) : prefetch(line);
        }
        __asm__ volatile("");  // compilers gather prefetches otherwise
    }
}

template <bool kScaled, class Fmt, int G>
KARAT_INLINE void leaf_of_blocks(Panels<Fmt, G>& w, const float* x, const float* x_sums, std::size_t count,
                                 f32x16 (&sum)[G]) {
    [[maybe_unused]] const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count; w.w += w.kStep) {
        const ScalesOf<Fmt, G> scales(w);
        for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub) {
#if defined(KARAT_AVX512) && !defined(KARAT_TWO_PORTS)
            if constexpr (kManyScales<Fmt>) forget_stored();  // or it holds words of all sub-blocks, in memory
#endif
            prefetch_sub_block(w, sub);
            f32x16 part[G];
            if constexpr (kByNibbles<Fmt>)
                chain_of_nibbles(w, sub, x + k, [&](int i) { prefetch_step<kNibbles<Fmt>>(w, sub, i); }, part);
            else
                chain_of_codes<Fmt>(
                    x + k,
                    [&](int g, int j) {
                        if constexpr (kScaled) return subnormal<Fmt>(w.block(g), sub, j / 4, j % 4);
                        else return codes.code(w.block(g), sub, j / 4, j % 4);
                    },
                    [&](int j) { prefetch_step<Fmt::kSub>(w, sub, j); }, part);
            end_sub_block<kScaled>(w, scales, sub, x_sums, k, part, sum);
        }
    }
}

// The same for formats whose codes are assembled as bytes first, up to kBytesFirst columns at a time.
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
                    for (int g = 0; g < G; ++g, to += 4 * kGroupRows) istore(to, codes.bytes(ahead.block(g), sub, c));
            }
        Block from{nullptr, bytes, 4 * lanes};
        for (const std::size_t end = k + columns; k < end; w.w += w.kStep) {
            const ScalesOf<Fmt, G> scales(w);
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, k += Fmt::kSub, from.words += Fmt::kSub * lanes) {
                f32x16 part[G];
                chain_of_codes<Fmt>(
                    x + k,
                    [&](int g, int j) {
                        const Block of_group{nullptr, from.words + g * 4 * kGroupRows, from.stride};
                        return stored_field<8>(of_group, j / 4, j % 4, 0, Fmt::Codes::kBytesBias);
                    },
                    [](int) {}, part);
                end_sub_block(w, scales, sub, x_sums, k, part, sum);
            }
        }
    }
}

// A task is one panel of G groups, or two panels of kPanelGroups: the same panel of two matrices (gate and up), or two
// panels of one. Not inline, as tiles (tile.h).
template <class Fmt, int G, bool kScaled>
KARAT_NOINLINE void panels_of_one(const Place& one, const Place& other) {
    const LinearArgs& a = one.args;
    Panels<Fmt, G> w{one.begin(), one.end()};
    constexpr int each = Panels<Fmt, G>::kEach;
    if constexpr (G > each) {
        w.apart = other.begin() - w.w;
        if (&a == &other.args) w.skipped = static_cast<std::size_t>(w.apart);
    }
    f32x16 levels[3][G], sum[G];
    std::size_t start = 0;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int g = 0; g < G; ++g) sum[g] = zero();
        if constexpr (kBytesBefore<Fmt>) leaf_of_bytes(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else if constexpr (kIsBlock<Fmt>)
            leaf_of_blocks<kScaled>(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else leaf_of_floats(w, a.x + start, end - start, sum);
        start = end;
        add_along_tree(
            leaf, a.num_leaves,
            [&](int level) {
                for (int g = 0; g < G; ++g) sum[g] = levels[level][g] + sum[g];
            },
            [&](int level) {
                for (int g = 0; g < G; ++g) levels[level][g] = sum[g];
            });
    }
    for (int g = 0; g < G; ++g)
        g < each ? write_result(a, 0, one.row(g), sum[g]) : write_result(other.args, 0, other.row(g - each), sum[g]);
}

template <class Fmt, bool kScaled>
void single_panels(const LinearArgs& a, std::size_t first, std::size_t last) {
    for (std::size_t panel = first; panel < last; ++panel)
        a.weight->panel_groups(panel) == kPanelGroups
            ? panels_of_one<Fmt, kPanelGroups, kScaled>({a, panel}, {a, panel})
            : panels_of_one<Fmt, 1, kScaled>({a, panel}, {a, panel});
}

// Panels first … last - 1 of a matrix.
struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;

    template <class Fmt>
    void run() const {
#if defined(KARAT_SUBNORMALS)
        if constexpr (kAsSubnormals<Fmt>)
            if (a.weight->columns <= LinearScratch::kFloats && scale_x<Fmt>(a.x, a.weight->columns, scratch)) {
                LinearArgs scaled = a;
                scaled.x = scratch;
                return panels<Fmt, true>(scaled);
            }
#endif
        panels<Fmt, false>(a);
    }

private:
    template <class Fmt, bool kScaled>
    void panels(const LinearArgs& args) const {
        std::size_t panel = first;
        if constexpr (kTwoStreams || kScaled)
            for (const std::size_t wide = args.weight->num_wide(), end = wide < last ? wide : last; panel + 2 <= end;
                 panel += 2)
                panels_of_one<Fmt, 2 * kPanelGroups, kScaled>({args, panel}, {args, panel + 1});
        single_panels<Fmt, kScaled>(args, panel, last);
    }
};

// Computes panels first … last - 1 of two matrices, side by side.
struct RunBoth {
    const LinearArgs &a, &b;
    std::size_t first, last;
    template <class Fmt>
    void run() const {
        std::size_t panel = first;
        for (const std::size_t wide = a.weight->num_wide(), end = wide < last ? wide : last; panel < end; ++panel)
            panels_of_one<Fmt, 2 * kPanelGroups, false>({a, panel}, {b, panel});
        single_panels<Fmt, false>(a, panel, last);
        single_panels<Fmt, false>(b, panel, last);
    }
};

}  // namespace

void one_token(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    with_format(a.weight->format, Run{a, first, last, scratch});
}

void one_token_of_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch) {
    if constexpr (kTwoStreams)
        if (a.weight->format == b.weight->format) return with_format(a.weight->format, RunBoth{a, b, first, last});
    one_token(a, first, last, scratch);
    one_token(b, first, last, scratch);
}

}  // namespace karat::KARAT_ISA_NAMESPACE
