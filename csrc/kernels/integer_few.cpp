// Linear layers of integers for a few tokens: codes are multiplied as they are read.
#include "kernels/integer.h"

#if defined(KARAT_VNNI) || defined(KARAT_PAIRS)
namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Groups that are multiplied at a time: as many accumulators as the registers hold.
template <int kTokens, int kDigits, int G>
inline constexpr int kGroupsAtOnce =
#if defined(KARAT_AVX2)
    kTokens == 1 && G > 1 ? 2 : 1;
#else
    kTokens * kDigits * G <= 24 ? G : G / 2;
#endif

// A panel of G groups, for T tokens.
template <class Fmt, int kDigits, int T, int G>
struct FewTokens {
    static constexpr int kSub = Fmt::kSub, kSteps = kSub / 4, kSubs = Fmt::kColumns / kSub;
    static constexpr int kAtOnce = kGroupsAtOnce<T, kDigits, G>;
    static constexpr std::size_t kStep = std::size_t{G} * kGroupRows * Fmt::kBytes;
    static constexpr std::size_t kLinesAhead = 2048;  // bytes
    using Codes = typename Fmt::Codes;

    const LinearArgs& a;
    const std::uint8_t* w;
    const Codes codes = Codes::make();

    KARAT_INLINE XBlock<kDigits> x(int t, std::size_t column) const {
        return {a.digits + static_cast<std::size_t>(t) * a.digits_stride +
                column / kDigitColumns * XBlock<kDigits>::kBytes};
    }

    KARAT_INLINE void leaf(std::size_t first, std::size_t last, f32x16 (&sum)[T][G]) {
        for (std::size_t k = first; k < last; w += kStep) {
            typename Fmt::Scales scales[G];
            for (int g = 0; g < G; ++g) scales[g] = Fmt::Scales::of(block_of<Fmt>(w, g, G));
            for (int sub = 0; sub < kSubs; ++sub, k += kSub)
                for (int g = 0; g < G; g += kAtOnce) groups(g, sub, k, scales, sum);
        }
    }

private:
    // Prefetches after step `step` of a block: a few lines, or none. All at once they would take the buffers that loads
    // need. The words of long blocks are read out of order, so whole blocks are prefetched, into the second-level
    // cache.
    KARAT_INLINE void fetch(int step) const {
        constexpr int steps = kSubs * (G / kAtOnce) * kSteps;
        constexpr int lines = static_cast<int>((kStep + 63) / 64);
        const std::uint8_t* const from = w + (kSubs > 1 ? 2 * kStep : kLinesAhead);
        for (int line = step * lines / steps; line < (step + 1) * lines / steps; ++line)
            kSubs > 1 ? prefetch_far(from + 64 * line) : prefetch(from + 64 * line);
        __asm__ volatile("");  // compilers gather prefetches otherwise
    }

    // Groups first … first + kAtOnce - 1 of a sub-block that begins at column k.
    KARAT_INLINE void groups(int first, int sub, std::size_t k, const typename Fmt::Scales (&scales)[G],
                             f32x16 (&sum)[T][G]) const {
        const int column = static_cast<int>(k % kDigitColumns);
        Dots<kClass<Codes::kLargest>, kSteps, (T > 2)> dots[T][kAtOnce][kDigits];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < kAtOnce; ++g)
                for (int digit = 0; digit < kDigits; ++digit) dots[t][g][digit].begin();
        KARAT_UNROLL_STEPS
        for (int step = 0; step < kSteps; ++step) {
            // Several tokens take both halves of a word, one after the other.
            const int c = T > 1 && kSteps == 8 && Fmt::kColumns == 32 ? step / 2 + 4 * (step % 2) : step;
            Factors<kClass<Codes::kLargest>> factors[kAtOnce];
            for (int g = 0; g < kAtOnce; ++g)
                factors[g] = factors[g].of(codes.of(block_of<Fmt>(w, first + g, G), sub, c));
            for (int t = 0; t < T; ++t)
                for (int digit = 0; digit < kDigits; ++digit) {
                    const i32x16 four = x(t, k).four(digit, column + 4 * c);
                    for (int g = 0; g < kAtOnce; ++g) dots[t][g][digit].add(step, factors[g], four);
                }
            fetch((sub * (G / kAtOnce) + first / kAtOnce) * kSteps + step);
        }
        for (int g = 0; g < kAtOnce; ++g) {
            const Block block = block_of<Fmt>(w, first + g, G);
            const f32x16 scale = scales[first + g].scale(block, sub);
            for (int t = 0; t < T; ++t) {
                const XBlock<kDigits> of = x(t, k);
                const auto& digits = dots[t][g];
                i32x16 rest = digits[kDigits - 1].total();
                if constexpr (kDigits > 1) rest = rest + (digits[kDigits - 2].total() << 8);
                const f32x16 power = set1(of.power());
                f32x16& to = sum[t][first + g];
                to = fma(part_of<kSub>(digits[0].total(), rest, of, column, Codes::kZero), scale * power, to);
                if constexpr (Fmt::kHasMinimum) {
                    const f32x16 total = set1(static_cast<float>(of.template sum<kSub>(column))) * power;
                    to = fma(total, scales[first + g].minimum(block, sub), to);
                }
            }
        }
    }
};

template <class Fmt, int kDigits, int T, int G>
KARAT_NOINLINE void panel_of_few(const LinearArgs& a, std::size_t panel) {
    FewTokens<Fmt, kDigits, T, G> few{a, a.weight->panel(panel)};
    f32x16 levels[3][T][G], sum[T][G];
    std::size_t start = 0;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < G; ++g) sum[t][g] = zero();
        few.leaf(start, end, sum);
        start = end;
        add_along_tree(
            leaf, a.num_leaves,
            [&](int level) {
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < G; ++g) sum[t][g] = levels[level][t][g] + sum[t][g];
            },
            [&](int level) {
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < G; ++g) levels[level][t][g] = sum[t][g];
            });
    }
    const std::size_t row = a.weight->first_group(panel) * kGroupRows;
    for (int t = 0; t < T; ++t)
        for (int g = 0; g < G; ++g)
            write_result(a, static_cast<std::size_t>(t), row + static_cast<std::size_t>(g) * kGroupRows, sum[t][g]);
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;

    template <class Fmt, int kDigits>
    void run() const {
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups
                ? passes<kPassTokens<kDigits>>(panel, Panel<Fmt, kDigits, kPanelGroups>())
                : passes<1>(panel, Panel<Fmt, kDigits, 1>());  // few rows of a model: less code
    }

private:
    template <class Fmt, int kDigits, int G>
    struct Panel {
        template <int T>
        static KARAT_INLINE void run(const LinearArgs& a, std::size_t panel) {
            panel_of_few<Fmt, kDigits, T, G>(a, panel);
        }
    };
    template <class P>
    struct Pass {
        const LinearArgs& a;
        std::size_t panel;
        template <int T>
        KARAT_INLINE void run() const {
            P::template run<T>(a, panel);
        }
    };

    // Computes a panel for kMost tokens at a time; its weights stay in the cache.
    template <int kMost, class P>
    KARAT_INLINE void passes(std::size_t panel, P) const {
        const std::size_t count = (a.tokens + kMost - 1) / kMost;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t token = i * a.tokens / count, end = (i + 1) * a.tokens / count;
            LinearArgs some = a;
            some.digits += token * a.digits_stride;
            some.out += token * a.out_stride;
            if (a.residual) some.residual += token * a.out_stride;
            with_height<kMost>(end - token, Pass<P>{some, panel});
        }
    }
};

}  // namespace

void few_tokens_of_integers(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_blocks_and_digits(a, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
#endif
