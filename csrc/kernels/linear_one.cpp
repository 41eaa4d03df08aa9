// Linear layers of stored floats for one token: weights are multiplied as they are read, without an unpacked copy.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Whether two panels are read side by side. Intel's cores read two streams faster than one. They read ahead in each by
// themselves, but only to the end of a page: the first lines of the next page are prefetched kPageAhead bytes before.
inline constexpr bool kTwoStreams = kTuning.two_streams;
inline constexpr std::size_t kPageAhead = 3072;
inline constexpr int kPageLines = 8;

// The task of a thread: one panel of G groups, or two panels of kPanelGroups. Each panel is a stream of memory.
template <class Fmt, int G>
struct Panels {
    static constexpr int kEach = G < static_cast<int>(kPanelGroups) ? G : static_cast<int>(kPanelGroups);
    static constexpr int kStreams = G / kEach;
    // To the next column; of floats that share a scale, to the next word.
    static constexpr std::size_t kNumber = kIsScaled<Fmt> ? sizeof(float) : Fmt::kBytes;
    static constexpr std::size_t kStep = static_cast<std::size_t>(kEach) * kGroupRows * kNumber;
    const std::uint8_t* w;
    const std::uint8_t* end;   // of the (first) panel
    std::ptrdiff_t apart = 0;  // the second panel from the first
    std::size_t skipped = 0;   // between the end of a panel and the one that is read after it

    // The chains of columns 0 … count - 1 of x.
    KARAT_INLINE void leaf(const float* x, std::size_t count, f32x16 (&sum)[1][G]) {
        if constexpr (kIsScaled<Fmt>) {
            for (std::size_t k = 0; k < count; k += Fmt::kColumns, w += (Fmt::kWords + 1) * kStep)
                add_block<Fmt>(
                    sum, [&](int g) __attribute__((always_inline)) { return group(g); }, kStep, x + k, 0,
                    [&](std::size_t word) __attribute__((always_inline)) { fetch(word * kStep); });
        } else {
            for (std::size_t k = 0; k < count; ++k, w += kStep) {
                fetch(0);
                const f32x16 value = broadcast(x + k);
                for (int g = 0; g < G; ++g) sum[0][g] = fma(Fmt::read(group(g)), value, sum[0][g]);
            }
        }
    }

private:
    KARAT_INLINE const std::uint8_t* stream(int g) const { return g < kEach ? w : w + apart; }
    KARAT_INLINE const std::uint8_t* group(int g) const { return stream(g) + g % kEach * kLanes * kNumber; }

    // Prefetches what comes a while after the step at `done` of each stream.
    KARAT_INLINE void fetch(std::size_t done) const {
        if constexpr (kTwoStreams) fetch_page(done);
        if constexpr (kTuning.float_bytes_ahead == 0) return;
        for (std::size_t line = 0; line < kStep; line += 64)
            for (int i = 0; i < kStreams; ++i) prefetch(stream(i * kEach) + done + kTuning.float_bytes_ahead + line);
    }

    // If the next step of a stream, kPageAhead further on, enters a new page of 4 KiB, the page's first lines are
    // prefetched. So are the first lines of the panel that is read next.
    KARAT_INLINE void fetch_page(std::size_t done) const {
        for (int i = 0; i < kStreams; ++i) {
            const std::uint8_t* ahead = stream(i * kEach) + done + kPageAhead;
            const std::uint8_t* const last = end + i * apart;
            const std::uint8_t* first = last + skipped;
            if (ahead >= last) ahead += skipped;
            const std::uint8_t* const page = ahead - reinterpret_cast<std::uintptr_t>(ahead) % 4096;
            if (ahead < first || page > first) first = page;
            if (static_cast<std::size_t>(ahead - first) < kStep)
                for (int line = 0; line < kPageLines; ++line) prefetch_far(first + 64 * line);
        }
    }
};

// A panel of a layer.
struct Place {
    const LinearArgs& args;
    std::size_t panel;

    KARAT_INLINE const std::uint8_t* begin() const { return args.weight->panel(panel); }
    KARAT_INLINE const std::uint8_t* end() const { return args.weight->panel(panel + 1); }
    KARAT_INLINE std::size_t row(int group) const {
        return (args.weight->first_group(panel) + static_cast<std::size_t>(group)) * kGroupRows;
    }
};

// A task is one panel of G groups, or two panels of kPanelGroups: the same panel of two matrices (gate and up), or two
// panels of one. Not inline, as tiles (tile.h).
template <class Fmt, int G>
KARAT_NOINLINE void panels_of_one(const Place& one, const Place& other) {
    const LinearArgs& a = one.args;
    constexpr int each = Panels<Fmt, G>::kEach;
    Panels<Fmt, G> w{begin_of<Fmt, each>(a, one.panel), one.end()};
    if constexpr (G > each) {
        w.apart = other.begin() - one.begin();
        if (&a == &other.args) w.skipped = static_cast<std::size_t>(w.apart);
    }
    f32x16 sum[1][G];
    sum_leaves(
        a, sum,
        [&](std::size_t start, std::size_t end)
            __attribute__((always_inline)) { w.leaf(a.x + start, end - start, sum); },
        [&](std::size_t leaf) __attribute__((always_inline)) {
            for (int g = 0; g < G; ++g)
                g < each ? write_result(a, leaf, 0, one.row(g), sum[0][g])
                         : write_result(other.args, leaf, 0, other.row(g - each), sum[0][g]);
        });
}

template <class Fmt>
void single_panels(const LinearArgs& a, std::size_t first, std::size_t last) {
    for (std::size_t panel = first; panel < last; ++panel)
        a.weight->panel_groups(panel) == kPanelGroups ? panels_of_one<Fmt, kPanelGroups>({a, panel}, {a, panel})
                                                      : panels_of_one<Fmt, 1>({a, panel}, {a, panel});
}

// Panels first … last - 1 of a matrix.
struct Run {
    const LinearArgs& a;
    std::size_t first, last;

    template <class Fmt>
    void run() const {
        std::size_t panel = first;
        if constexpr (kTwoStreams)
            for (const std::size_t wide = a.weight->num_wide(), end = wide < last ? wide : last; panel + 2 <= end;
                 panel += 2)
                panels_of_one<Fmt, 2 * kPanelGroups>({a, panel}, {a, panel + 1});
        single_panels<Fmt>(a, panel, last);
    }
};

// The same of two matrices, side by side.
struct RunBoth {
    const LinearArgs &a, &b;
    std::size_t first, last;
    template <class Fmt>
    void run() const {
        std::size_t panel = first;
        for (const std::size_t wide = a.weight->num_wide(), end = wide < last ? wide : last; panel < end; ++panel)
            panels_of_one<Fmt, 2 * kPanelGroups>({a, panel}, {b, panel});
        single_panels<Fmt>(a, panel, last);
        single_panels<Fmt>(b, panel, last);
    }
};

}  // namespace

void one_token(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_floats(a.weight->format, Run{a, first, last});
}

void one_token_of_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last) {
    if constexpr (kTwoStreams)
        if (a.weight->format == b.weight->format) return with_floats(a.weight->format, RunBoth{a, b, first, last});
    one_token(a, first, last);
    one_token(b, first, last);
}

}  // namespace karat::KARAT_ISA_NAMESPACE
