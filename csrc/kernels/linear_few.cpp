// Linear layers of stored floats for a few tokens, in builds with enough registers: weights are multiplied as they are
// read, for several tokens, without an unpacked copy.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// The tokens and groups of a pass.
inline constexpr int kPassTokens = kTuning.direct_rows, kPassGroups = kTuning.direct_vectors;
inline constexpr std::size_t kStep = kPanelGroups * kLanes;  // weights of a column, or words

// Prefetches the next panel while this one is computed. Each pass prefetches its share, evenly: a few lines or none at
// each column.
class Ahead {
public:
    Ahead(const std::uint8_t* lines, std::size_t bytes, std::size_t columns)
        : at_(lines), due_(lines), step_(bytes / columns) {}
    KARAT_INLINE void step() {
        due_ += step_;
        for (; at_ < due_; at_ += 64) prefetch_far(at_);
    }

private:
    const std::uint8_t *at_, *due_;
    std::size_t step_;
};

// Groups group … group + DG - 1 of a panel for T tokens.
template <class Fmt, int DG>
struct FewTokens {
    static constexpr std::size_t kNumber = kIsScaled<Fmt> ? sizeof(float) : Fmt::kBytes;
    const LinearArgs& a;
    std::size_t panel, token;
    int group;
    Ahead next;

    template <int T>
    KARAT_INLINE void run() const {
        const std::uint8_t* w = begin_of<Fmt, kPanelGroups>(a, panel) + group * kLanes * kNumber;
        const float* x = a.x + token * a.x_stride;
        Ahead ahead = next;
        f32x16 sum[T][DG];
        const auto add_leaf = [&](std::size_t start, std::size_t end) __attribute__((always_inline)) {
            if constexpr (kIsScaled<Fmt>) {
                constexpr std::size_t step = kStep * kNumber;
                for (; start < end; start += Fmt::kColumns, w += (Fmt::kWords + 1) * step)
                    add_block<Fmt>(
                        sum, [&](int g) __attribute__((always_inline)) { return w + g * kLanes * kNumber; }, step,
                        x + start, a.x_stride,
                        [&](std::size_t) __attribute__((always_inline)) {
                            for (int column = 0; column < Fmt::kWordColumns; ++column) ahead.step();
                        });
            } else {
                for (; start < end; ++start, w += kStep * Fmt::kBytes) {
                    ahead.step();
                    f32x16 weight[DG];
                    for (int g = 0; g < DG; ++g) weight[g] = Fmt::read(w + g * kLanes * Fmt::kBytes);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * a.x_stride + start);
                        for (int g = 0; g < DG; ++g) sum[t][g] = fma(weight[g], value, sum[t][g]);
                    }
                }
            }
        };
        const std::size_t row = (a.weight->first_group(panel) + static_cast<std::size_t>(group)) * kGroupRows;
        sum_leaves(a, sum, add_leaf, [&](std::size_t leaf) __attribute__((always_inline)) {
            for (std::size_t t = 0; t < T; ++t)
                for (std::size_t g = 0; g < DG; ++g) write_result(a, leaf, token + t, row + g * kLanes, sum[t][g]);
        });
    }
};

// Computes one panel, in passes of up to T tokens by DG groups.
template <class Fmt, int T, int DG>
void panel_of_few(const LinearArgs& a, std::size_t panel) {
    const std::size_t tiles = (a.tokens + T - 1) / T, passes = tiles * (kPanelGroups / DG);
    const std::uint8_t* const next = a.weight->panel(panel + 1);
    const std::size_t share = static_cast<std::size_t>(next - a.weight->panel(panel)) / passes;
    std::size_t pass = 0;
    for (int group = 0; group < static_cast<int>(kPanelGroups); group += DG)
        for (std::size_t i = 0; i < tiles; ++i, ++pass) {
            const std::size_t first = i * a.tokens / tiles, last = (i + 1) * a.tokens / tiles;
            const FewTokens<Fmt, DG> few{a, panel, first, group, {next + pass * share, share, a.weight->columns}};
            with_height<T>(last - first, few);
        }
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    template <class Fmt>
    void run() const {
        for (std::size_t panel = first; panel < last; ++panel) {
#if defined(KARAT_AVX2)
            if (a.tokens == 2) {  // with one group there are too few chains to keep the multiply-adds busy
                panel_of_few<Fmt, 2, 2>(a, panel);
                continue;
            }
#endif
            panel_of_few<Fmt, kPassTokens, kPassGroups>(a, panel);
        }
    }
};

}  // namespace

void few_tokens([[maybe_unused]] const LinearArgs& a, [[maybe_unused]] std::size_t first,
                [[maybe_unused]] std::size_t last) {
    if constexpr (kTuning.few_float_tokens > 0) with_floats(a.weight->format, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
