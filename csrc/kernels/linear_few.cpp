// Linear layers for a few tokens, in builds with enough registers: codes are multiplied as they are read, for several
// tokens, without an unpacked copy.
#include "kernels/linear.h"

#if defined(KARAT_AVX512) || defined(KARAT_AVX2)
namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Prefetches the next panel while this one is computed. Each pass (a few groups, some tokens) prefetches its share,
// evenly: a few lines or none at each step. A step is four columns, a quarter of a sub-block's nibbles, or a column of
// stored floats.
class Ahead {
public:
    Ahead(const std::uint8_t* lines, std::size_t bytes, std::size_t steps)
        : at_(lines), due_(lines), step_(bytes / steps) {}
    KARAT_INLINE void step() {
        due_ += step_;
        for (; at_ < due_; at_ += 64) prefetch_far(at_);
    }

private:
    const std::uint8_t *at_, *due_;
    std::size_t step_;
};

// The tokens and groups of a pass. By nibbles, groups share the products of a token's numbers.
template <class Fmt>
inline constexpr bool kSharesProducts = kByNibbles<Fmt> && kFewByNibbles > 0;
template <class Fmt>
inline constexpr int kPassTokens = kSharesProducts<Fmt> ? 4 : kTuning.direct_rows;
template <class Fmt>
inline constexpr int kPassGroups = kSharesProducts<Fmt> ? static_cast<int>(kPanelGroups) : kTuning.direct_vectors;

// Whether two tokens take two groups at a time: with one group there are too few chains to keep the multiply-adds busy.
// Formats whose codes lie in several words or in a table, or that have minima, have too few registers left for it.
template <class Fmt>
inline constexpr bool kPairByTwo = [] {
#if defined(KARAT_AVX2)
    if constexpr (kIsBlock<Fmt>) return !Fmt::kHasMinimum && !requires { Fmt::Codes::kBytesBias; };
    return true;
#else
    return false;
#endif
}();

// Groups g … g + DG - 1 of a panel for T tokens, codes straight from the packed words as for one token.
template <class Fmt, int G, int DG>
struct FewTokens {
    const LinearArgs& a;
    std::size_t panel, token;
    int group;
    const LinearScratch& s;
    Ahead next;

    template <int T>
    KARAT_INLINE void run() const {
        const std::uint8_t* w = a.weight->panel(panel);
        const float* x = a.x + token * a.x_stride;
        float* sums = s.sums;
        Ahead ahead = next;
        std::size_t start = 0;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t end = a.leaf_ends[leaf];
            if constexpr (kIsBlock<Fmt>) {
                for (int i = 0; i < T * DG; ++i) store(sums + i * kLanes, zero());
                [[maybe_unused]] const auto codes = Fmt::Codes::make();
                constexpr std::size_t step = G * kGroupRows * Fmt::kBytes;
                for (; start < end; start += Fmt::kColumns, w += step)
                    for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub) {
                        f32x16 part[T][DG];
                        for (int t = 0; t < T; ++t)
                            for (int g = 0; g < DG; ++g) part[t][g] = zero();
                        const float* at = x + start + static_cast<std::size_t>(sub * Fmt::kSub);
                        if constexpr (kByNibbles<Fmt>) add_nibbles(w, sub, at, part, ahead);
                        else add_codes(codes, w, sub, at, part, ahead);
                        float totals[T];
                        if constexpr (Fmt::kHasMinimum)
                            for (int t = 0; t < T; ++t)
                                totals[t] = sum_of_x<Fmt::kSub>(
                                    a.x_sums + (token + static_cast<std::size_t>(t)) * (a.weight->columns / 16),
                                    start / Fmt::kSub + static_cast<std::size_t>(sub));
                        for (int g = 0; g < DG; ++g) {
                            const f32x16 factor = scale_of<Fmt>(block_of<Fmt>(w, group + g, G), sub);
                            f32x16 minimum;
                            if constexpr (Fmt::kHasMinimum)
                                minimum = minimum_of<Fmt>(block_of<Fmt>(w, group + g, G), sub);
                            for (int t = 0; t < T; ++t) {
                                float* const of_group = sums + (t * DG + g) * kLanes;
                                f32x16 sum = fma(part[t][g], factor, load(of_group));
                                if constexpr (Fmt::kHasMinimum) sum = fma(set1(totals[t]), minimum, sum);
                                store(of_group, sum);
                            }
                        }
                        forget_stored();
                    }
            } else {
                f32x16 sum[T][DG];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < DG; ++g) sum[t][g] = zero();
                constexpr std::size_t step = G * kLanes * Fmt::kBytes;
                for (; start < end; ++start, w += step) {
                    ahead.step();
                    f32x16 weight[DG];
                    for (int g = 0; g < DG; ++g) weight[g] = Fmt::read(w + (group + g) * kLanes * Fmt::kBytes);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * a.x_stride + start);
                        for (int g = 0; g < DG; ++g) sum[t][g] = fma(weight[g], value, sum[t][g]);
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < DG; ++g) store(sums + (t * DG + g) * kLanes, sum[t][g]);
            }
            constexpr std::size_t size = T * DG * kLanes;
            add_along_tree(
                leaf, a.num_leaves,
                [&](int level) {
                    const float* left = s.levels + static_cast<std::size_t>(level) * size;
                    for (std::size_t i = 0; i < size; i += kLanes) store(sums + i, load(left + i) + load(sums + i));
                },
                [&](int level) {
                    float* left = s.levels + static_cast<std::size_t>(level) * size;
                    for (std::size_t i = 0; i < size; i += kLanes) store(left + i, load(sums + i));
                });
        }
        const std::size_t row = (a.weight->first_group(panel) + static_cast<std::size_t>(group)) * kGroupRows;
        for (std::size_t t = 0; t < T; ++t)
            for (std::size_t g = 0; g < DG; ++g)
                write_result(a, token + t, row + g * kLanes, load(sums + (t * DG + g) * kLanes));
    }

private:
    // A sub-block's chains, by column.
    template <class Codes, int T>
    KARAT_INLINE void add_codes(const Codes& codes, const std::uint8_t* w, int sub, const float* x,
                                f32x16 (&part)[T][DG], Ahead& ahead) const {
        // Columns in halves of 16; the half is a constant.
        const auto sixteen = [&](auto half) {
            for (int word = 0; word < 4; ++word) {
                ahead.step();
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) {
                    f32x16 weight[DG];
                    for (int g = 0; g < DG; ++g)
                        weight[g] = codes.code(block_of<Fmt>(w, group + g, G), sub, half * 4 + word, j);
                    for (int t = 0; t < T; ++t) {
                        const float* of_token = x + static_cast<std::size_t>(t) * a.x_stride;
                        const f32x16 value = broadcast(of_token + half * 16 + 4 * word + j);
                        for (int g = 0; g < DG; ++g) part[t][g] = fma(weight[g], value, part[t][g]);
                    }
                }
            }
        };
        sixteen(Constant<0>());
        if constexpr (Fmt::kSub == 32) sixteen(Constant<1>());
    }

    // The same by nibbles.
    template <int T>
    KARAT_INLINE void add_nibbles(const std::uint8_t* w, int sub, const float* x, f32x16 (&part)[T][DG],
                                  Ahead& ahead) const {
#pragma GCC unroll 16
        for (int i = 0; i < kNibbles<Fmt>; ++i) {
            const Nibble n = nibble(i);
            if (i % (kNibbles<Fmt> / 4) == 0) ahead.step();
            i32x16 bits[DG];
            for (int g = 0; g < DG; ++g) bits[g] = nibbles_of<Fmt>(block_of<Fmt>(w, group + g, G), sub, n);
            for (int t = 0; t < T; ++t) {
                const float* of_token = x + static_cast<std::size_t>(t) * a.x_stride;
                const f32x16 products = product(
                    n, [&](int column) { return broadcast(of_token + column); },
                    [](const float (&values)[kProducts]) { return load(values); });
                for (int g = 0; g < DG; ++g) part[t][g] = part[t][g] + pick(products, bits[g]);
            }
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) compute_now(part[t][g]);
        }
    }
};

// Computes one panel, in passes of up to T tokens by DG groups.
template <class Fmt, int T, int DG>
void panel_of_few(const LinearArgs& a, std::size_t panel, const LinearScratch& s) {
    const std::size_t tiles = (a.tokens + T - 1) / T, passes = tiles * (kPanelGroups / DG);
    const std::uint8_t* const next = a.weight->panel(panel + 1);
    const std::size_t bytes = static_cast<std::size_t>(next - a.weight->panel(panel)), share = bytes / passes;
    const std::size_t steps = kIsBlock<Fmt> ? a.weight->columns / 4 : a.weight->columns;
    std::size_t pass = 0;
    for (int group = 0; group < static_cast<int>(kPanelGroups); group += DG)
        for (std::size_t i = 0; i < tiles; ++i, ++pass) {
            const std::size_t first = i * a.tokens / tiles, last = (i + 1) * a.tokens / tiles;
            const FewTokens<Fmt, kPanelGroups, DG> few{a, panel, first, group, s, {next + pass * share, share, steps}};
            if constexpr (kIsBlock<Fmt>) with_height<T, 2>(last - first, NotInlined(few));
            else with_height<T, 2>(last - first, few);
        }
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;
    template <class Fmt>
    void run() const {
        const LinearScratch s(scratch);
        if constexpr (kByNibbles<Fmt> ? kFewByNibbles > 0 : kFewTokens > 0)
            for (std::size_t panel = first; panel < last; ++panel) {
                if constexpr (kPairByTwo<Fmt>)
                    if (a.tokens == 2) {
                        panel_of_few<Fmt, 2, 2>(a, panel, s);
                        continue;
                    }
                panel_of_few<Fmt, kPassTokens<Fmt>, kPassGroups<Fmt>>(a, panel, s);
            }
    }
};

}  // namespace

void few_tokens(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    with_format(a.weight->format, Run{a, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
#endif
