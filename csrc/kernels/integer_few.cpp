// Linear layers of integers for a few tokens: codes are multiplied as they are read.
#include <type_traits>

#include "kernels/integer.h"

#if defined(KARAT_PASSES)
namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Groups that are multiplied at a time: as many accumulators as the registers hold.
template <class Fmt, int kTokens, int kDigits, int G>
inline constexpr int kGroupsAtOnce = [] {
    constexpr int most = G < kIntegerTuning.pass_groups ? G : kIntegerTuning.pass_groups;
    if constexpr (kTokens == 1 && Fmt::kBytes > 32 && kIntegerTuning.long_pass_groups < most)
        return kIntegerTuning.long_pass_groups;
    return kTokens * kDigits * most > kIntegerTuning.pass_sums && most > 1 ? most / 2 : most;
}();

// A token's sums of a sub-block of one group: of each digit by itself.
template <class Codes, int kDigits, int kSteps>
struct SumsOfDigits {
    static constexpr int kCodes = kClass<Codes::kLargest>;
    using X = XBlock<kDigits>;
    Dots<kCodes, kSteps> dots[kDigits];

    static KARAT_INLINE X read(const XBlock<kDigits>& x) { return x; }
    KARAT_INLINE void begin() {
        for (auto& digit : dots) digit.begin();
    }
    KARAT_INLINE void add(int step, const Factors<kCodes>& codes, const X& x, int column) {
        for (int digit = 0; digit < kDigits; ++digit) dots[digit].add(step, codes, x.four(digit, column));
    }
    KARAT_INLINE i32x16 first() const { return dots[0].total(); }
    KARAT_INLINE i32x16 rest() const {
        const i32x16 last = dots[kDigits - 1].total();
        if constexpr (kDigits == 1) return last;
        else return last + (dots[kDigits - 2].total() << 8);
    }
};

#if defined(KARAT_PAIRS)
// The same of q itself, in words of 16 bits: sums of digits would be joined too often for codes of more than five bits,
// or taken of both halves of a code.
struct SumsOfWords {
    static constexpr int kCodes = kWords;
    using X = Words;
    i32x16 sum;

    static KARAT_INLINE X read(const XBlock<2>& x) { return x.words(); }
    KARAT_INLINE void begin() { sum = iset1(0); }
    KARAT_INLINE void add(int, const Factors<kWords>& codes, const X& x, int column) {
        for (int part = 0; part < 2; ++part) add_words(sum, codes.part[part], x.two(column / 2 + part));
    }
    KARAT_INLINE i32x16 first() const { return sum; }
    KARAT_INLINE i32x16 rest() const { return sum; }
};
template <class Codes, int kDigits, int kSteps>
using SumsOf =
    std::conditional_t<kDigits == 2 && (Codes::kLargest > 31), SumsOfWords, SumsOfDigits<Codes, kDigits, kSteps>>;
#else
template <class Codes, int kDigits, int kSteps>
using SumsOf = SumsOfDigits<Codes, kDigits, kSteps>;
#endif

// A panel of G groups, for T tokens.
template <class Fmt, int kDigits, int T, int G>
struct FewTokens {
    static constexpr int kSub = Fmt::kSub, kSteps = kSub / 4, kSubs = Fmt::kColumns / kSub;
    static constexpr int kAtOnce = kGroupsAtOnce<Fmt, T, kDigits, G>;
    static constexpr std::size_t kStep = std::size_t{G} * kGroupRows * Fmt::kBytes;
    using Codes = typename Fmt::Codes;
    using Scales = typename Fmt::Scales;
    using Sums = SumsOf<Codes, kDigits, kSteps>;

    const LinearArgs& a;
    const std::uint8_t* w;
    const Codes codes = Codes::make();

    KARAT_INLINE void leaf(std::size_t first, std::size_t last, f32x16 (&sum)[T][G]) {
        PlaceOfBlock<kDigits> x(a, 0, first);
        for (std::size_t k = first; k < last; w += kStep) {
            if (k % kStripColumns == 0) x = {a, 0, k};
            Scales scales[kSubs > 1 ? G : 1];
            if constexpr (kSubs > 1)
                for (int g = 0; g < G; ++g) scales[g] = Scales::of(block_of<Fmt>(w, g, G));
            for (int pair = 0; pair < kSubs; pair += 2) {  // shifts that differ in the two are constants so
                KARAT_UNROLL_STEPS
                for (int sub = pair; sub < pair + (kSubs > 1 ? 2 : 1); ++sub, k += kSub) {
                    for (int g = 0; g < G; g += kAtOnce) groups(g, sub, k, x, scales, sum);
                    if ((sub + 1) * kSub % int{kDigitColumns} == 0) x.at += XBlock<kDigits>::kBytes;
                }
            }
        }
    }

private:
    KARAT_INLINE XBlock<kDigits> block_of_x(const PlaceOfBlock<kDigits>& x, int t) const {
        return {a.digits + x.at + static_cast<std::size_t>(t) * x.stride};
    }

    // Prefetches as much as the groups of a sub-block read, in a step a line or none: all at once they would take the
    // buffers that loads need. The words of long blocks are read out of order, so whole blocks are prefetched.
    KARAT_INLINE void fetch(int part, int step) const {
        constexpr int bytes = static_cast<int>(kStep) / (kSubs * (G / kAtOnce)), lines = (bytes + 63) / 64;
        constexpr auto& tuning = kIntegerTuning;
        constexpr bool is_slow = Fmt::kBytes == 17 && tuning.byte_scaled_far > 0;  // MXFP4
        constexpr Into into = kSubs > 1 ? tuning.long_into : is_slow ? Into::second_level : tuning.short_into;
        constexpr std::size_t ahead = kSubs > 1 ? tuning.long_blocks_ahead * kStep
                                      : is_slow ? tuning.byte_scaled_far
                                                : tuning.short_bytes_ahead;
        constexpr std::size_t far = kSubs > 1 ? tuning.long_bytes_far : 0;
        const std::uint8_t* const from = w + part * bytes;
        for (int line = step * lines / kSteps; line < (step + 1) * lines / kSteps; ++line) {
            prefetch<into>(from + ahead + 64 * line);
            if constexpr (far > 0) prefetch_far(from + far + 64 * line);
        }
        __asm__ volatile("");  // compilers gather prefetches otherwise
    }

    // Groups first … first + kAtOnce - 1 of a sub-block that begins at column k. `all` has scales of long blocks.
    KARAT_INLINE void groups(int first, int sub, std::size_t k, const PlaceOfBlock<kDigits>& x, const Scales* all,
                             f32x16 (&sum)[T][G]) const {
        const int column = static_cast<int>(k % kDigitColumns);
        typename Sums::X columns[T];
        Sums sums[T][kAtOnce];
        for (int t = 0; t < T; ++t) {
            columns[t] = Sums::read(block_of_x(x, t));
            for (int g = 0; g < kAtOnce; ++g) sums[t][g].begin();
        }
        KARAT_UNROLL_STEPS
        for (int step = 0; step < kSteps; ++step) {
            // Both halves of a word, one after the other; words that have none lie in the order of columns.
            constexpr bool in_halves = kSteps == 8 && Fmt::kColumns == 32 && Fmt::kBytes < Fmt::kColumns;
            const int c = in_halves ? step / 2 + 4 * (step % 2) : step;
            Factors<Sums::kCodes> factors[kAtOnce];
            for (int g = 0; g < kAtOnce; ++g)
                factors[g] = factors[g].of(codes.of(block_of<Fmt>(w, first + g, G), sub, c));
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < kAtOnce; ++g) sums[t][g].add(step, factors[g], columns[t], column + 4 * c);
            fetch(sub * (G / kAtOnce) + first / kAtOnce, step);
        }
        for (int g = 0; g < kAtOnce; ++g) {
            const Block block = block_of<Fmt>(w, first + g, G);
            for (int t = 0; t < T; ++t) {
                f32x16& to = sum[t][first + g];
                const XBlock<kDigits> of = block_of_x(x, t);
                constexpr int kZero = Codes::kZero - Factors<Sums::kCodes>::kLess;
                const f32x16 part = part_of<kSub>(sums[t][g].first(), sums[t][g].rest(), of, column, kZero);
                // Short blocks' scales are read where they are used: through memory they came late.
                if constexpr (kSubs > 1) add(part, of, column, all[first + g], block, sub, to);
                else add(part, of, column, Scales::of(block), block, sub, to);
            }
        }
    }

    static KARAT_INLINE void add(f32x16 part, const XBlock<kDigits>& x, int column, const Scales& scales,
                                 const Block& block, int sub, f32x16& to) {
        to = fma(part, scales.scale(block, sub) * set1(x.power()), to);
        if constexpr (Fmt::kHasMinimum) to = fma(set1(x.template value<kSub>(column)), scales.minimum(block, sub), to);
    }
};

template <class Fmt, int kDigits, int T, int G>
KARAT_NOINLINE void panel_of_few(const LinearArgs& a, std::size_t panel) {
    FewTokens<Fmt, kDigits, T, G> few{a, begin_of<Fmt, G>(a, panel)};
    f32x16 sum[T][G];
    const std::size_t row = a.weight->first_group(panel) * kGroupRows;
    sum_leaves(
        a, sum, [&](std::size_t start, std::size_t end) __attribute__((always_inline)) { few.leaf(start, end, sum); },
        [&](std::size_t leaf) __attribute__((always_inline)) {
            for (std::size_t t = 0; t < T; ++t)
                for (std::size_t g = 0; g < G; ++g) write_result(a, leaf, t, row + g * kGroupRows, sum[t][g]);
        });
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;

    template <class Fmt, int kDigits>
    void run() const {
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups
                ? passes<Fmt, kDigits, kPanelGroups, kPassTokens<kDigits>>(panel)
                : passes<Fmt, kDigits, 1, 1>(panel);  // few rows of a model: less code
    }

private:
    template <class Fmt, int kDigits, int G>
    struct Pass {
        const LinearArgs& a;
        std::size_t panel;
        template <int T>
        KARAT_INLINE void run() const {
            panel_of_few<Fmt, kDigits, T, G>(a, panel);
        }
    };

    // Computes a panel for kMost tokens at a time; its weights stay in the cache.
    template <class Fmt, int kDigits, int G, int kMost>
    KARAT_INLINE void passes(std::size_t panel) const {
        const std::size_t count = (a.tokens + kMost - 1) / kMost;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t token = i * a.tokens / count, end = (i + 1) * a.tokens / count;
            const LinearArgs some = from_token(a, token);
            with_height<kMost>(end - token, Pass<Fmt, kDigits, G>{some, panel});
        }
    }
};

}  // namespace

void few_tokens_of_integers(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_blocks_and_digits(a, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
#endif
