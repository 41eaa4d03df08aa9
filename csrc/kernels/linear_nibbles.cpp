// Linear layers for many tokens of formats that are multiplied by nibbles (nibbles.h): a lane is a token. All products
// of a sub-block are computed once for all rows, into a table that stays in the first-level cache; a row's nibbles
// select the products that it adds. One addition replaces one and a third (Q3_K) or two multiply-adds (Q2_K).
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Loops over nibbles and rows are unrolled where there are instructions for sixteen lanes; elsewhere the code would
// take megabytes.
#if defined(KARAT_AVX512) || defined(KARAT_AVX2)
#define KARAT_UNROLL _Pragma("GCC unroll 16")
#else
#define KARAT_UNROLL
#endif

// Panels of one matrix, or of two with the same x.
struct PanelsOfBoth {
    const LinearArgs &a, &b;
    std::size_t first, count;  // of each

    std::size_t size() const { return &a == &b ? count : 2 * count; }
    Place operator[](std::size_t i) const { return i < count ? Place{a, first + i} : Place{b, first + i - count}; }
    std::size_t rows() const {
        std::size_t groups = 0;
        for (std::size_t i = 0; i < size(); ++i) groups += (*this)[i].groups();
        return groups * kGroupRows;
    }
};

// A group's part of the block that holds column k.
template <class Fmt>
KARAT_INLINE Block block_at(const Place& place, std::size_t k, std::size_t group) {
    const std::size_t groups = place.groups();
    return block_of<Fmt>(place.begin() + k / Fmt::kColumns * (groups * kGroupRows * Fmt::kBytes),
                         static_cast<int>(group), static_cast<int>(groups));
}
template <class Fmt>
KARAT_INLINE int sub_block_at(std::size_t k) {
    return static_cast<int>(k % Fmt::kColumns) / Fmt::kSub;
}

// Rows that are computed together: their chains do not wait for each other, and all of them have registers.
template <int V>
inline constexpr std::size_t kAtOnce = [] {
#if defined(KARAT_AVX512)
    return V == 1 ? 8 : 4;
#else
    return V == 1 ? 4 : 2;
#endif
}();

// The sub-block of a panel that begins at column k, with V vectors of tokens: sums [row, V, lanes] go on, or begin with
// it. products: [nibble, V, kProducts, lanes].
template <class Fmt, int V, bool kFirst>
KARAT_NOINLINE void add_panel(const Place& place, std::size_t k, const float* products, const float* totals,
                              float* sums) {
    constexpr int kScale = 8;  // which an address has for nothing
    static_assert(kLanes * sizeof(float) == kScale << 3);
    const int sub = sub_block_at<Fmt>(k);
    const std::size_t groups = place.groups();
    alignas(64) std::uint32_t nibbles[kNibbles<Fmt> / 4][kWide];  // four bytes, times 8
    alignas(64) float scales[kWide], minima[kWide];
    for (std::size_t g = 0; g < groups; ++g) {
        const Block b = block_at<Fmt>(place, k, g);
        for (int i = 0; i < kNibbles<Fmt>; i += 4) {  // of all four bytes at once
            const i32x16 bytes = (nibbles_of<Fmt>(b, sub, nibble(i)) << 3) & iset1(0x78787878);
            std::memcpy(nibbles[i / 4] + g * kLanes, &bytes, sizeof bytes);
        }
        store(scales + g * kLanes, scale_of<Fmt>(b, sub));
        if constexpr (Fmt::kHasMinimum) store(minima + g * kLanes, minimum_of<Fmt>(b, sub));
    }
    f32x16 total[V];
    if constexpr (Fmt::kHasMinimum)
        for (int v = 0; v < V; ++v) total[v] = load(totals + v * kLanes);
    for (std::size_t first = 0; first < groups * kGroupRows; first += kAtOnce<V>) {
        f32x16 part[kAtOnce<V>][V];
        for (std::size_t row = 0; row < kAtOnce<V>; ++row)
            for (int v = 0; v < V; ++v) part[row][v] = zero();
        KARAT_UNROLL
        for (int i = 0; i < kNibbles<Fmt>; ++i) {
            KARAT_UNROLL
            for (std::size_t row = 0; row < kAtOnce<V>; ++row) {
                const float* own =
                    products + kScale / sizeof(float) * (nibbles[i / 4][first + row] >> (8 * (i % 4)) & 255);
                for (int v = 0; v < V; ++v)
                    compute_now(part[row][v]);     // or all places come first, more than there are registers
                __asm__ volatile("" : "+r"(own));  // one register: with two, an addition from memory is two operations
                for (int v = 0; v < V; ++v) part[row][v] = part[row][v] + load(own + (i * V + v) * kProducts * kLanes);
            }
        }
        for (std::size_t row = first; row < first + kAtOnce<V>; ++row, sums += V * kLanes)
            for (int v = 0; v < V; ++v) {
                f32x16 sum = fma(part[row - first][v], set1(scales[row]), kFirst ? zero() : load(sums + v * kLanes));
                if constexpr (Fmt::kHasMinimum) sum = fma(total[v], set1(minima[row]), sum);
                store(sums + v * kLanes, sum);
            }
    }
}

// Tokens token … token + tokens - 1 of all rows of the panels, in V vectors. Lanes beyond the last token repeat it.
template <class Fmt, int V>
struct TokensByNibbles {
    static constexpr std::size_t kLine = V * kLanes;  // floats of a row: one for each token
    const PanelsOfBoth& panels;
    std::size_t token, tokens;
    const NibbleScratch& s;
    const float *x[kLine], *x_sums[kLine];  // of each lane

    TokensByNibbles(const PanelsOfBoth& panels, std::size_t token, std::size_t tokens, const NibbleScratch& s)
        : panels(panels), token(token), tokens(tokens), s(s) {
        const LinearArgs& a = panels.a;
        for (std::size_t lane = 0; lane < kLine; ++lane) {
            const std::size_t of = token + (lane < tokens ? lane : tokens - 1);
            x[lane] = a.x + of * a.x_stride;
            if constexpr (Fmt::kHasMinimum) x_sums[lane] = a.x_sums + of * (a.weight->columns / 16);
        }
    }

    void run() const {
        const LinearArgs& a = panels.a;
        const std::size_t size = panels.rows() * kLine;
        float *sums = s.sums[0], *levels[3] = {s.sums[1], s.sums[2], s.sums[3]};
        std::size_t start = 0;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t begin = start, end = a.leaf_ends[leaf];
            if (begin == end)  // a leaf of no columns
                for (std::size_t i = 0; i < size; i += kLanes) store(sums + i, zero());
            for (; start < end; start += Fmt::kSub) {
                make_products(start);
                float* own = sums;
                for (std::size_t i = 0; i < panels.size(); own += panels[i++].groups() * kGroupRows * kLine) {
                    const bool last = i + 1 == panels.size();
                    fetch(panels[last ? 0 : i + 1], last ? start + Fmt::kSub : start);
                    start == begin ? add_panel<Fmt, V, true>(panels[i], start, s.products, s.totals, own)
                                   : add_panel<Fmt, V, false>(panels[i], start, s.products, s.totals, own);
                }
            }
            add_along_tree(
                leaf, a.num_leaves,
                [&](int level) {
                    for (std::size_t i = 0; i < size; i += kLanes)
                        store(sums + i, load(levels[level] + i) + load(sums + i));
                },
                [&](int level) {  // the two change places
                    float* const waiting = sums;
                    sums = levels[level];
                    levels[level] = waiting;
                });
        }
        const float* own = sums;
        for (std::size_t i = 0; i < panels.size(); own += panels[i++].groups() * kGroupRows * kLine)
            end_panel(panels[i], own);
    }

private:
    // Computes the table of the sub-block that begins at column k: products [nibble, V, kProducts, lanes], and sums of
    // x.
    void make_products(std::size_t k) const {
        for (std::size_t v = 0; v < V; ++v) {
            const float* rows[kLanes];
            for (std::size_t lane = 0; lane < kLanes; ++lane) rows[lane] = x[v * kLanes + lane] + k;
            static_assert(Fmt::kSub == kLanes);
            f32x16 of_column[kLanes];
            transpose(rows, of_column);
            KARAT_UNROLL
            for (int i = 0; i < kNibbles<Fmt>; ++i) {
                const Nibble n = nibble(i);
                float* const to = s.products + (static_cast<std::size_t>(i) * V + v) * (kProducts * kLanes);
                KARAT_UNROLL
                for (int bits = 0; bits < kProducts; ++bits)
                    store(to + bits * kLanes,
                          product(
                              n, [&](int column) { return of_column[column]; },
                              [=](const float (&values)[kProducts]) { return set1(values[bits]); }));
            }
        }
        if constexpr (Fmt::kHasMinimum)
            for (std::size_t lane = 0; lane < kLine; ++lane)
                s.totals[lane] = sum_of_x<Fmt::kSub>(x_sums[lane], k / Fmt::kSub);
    }

    // Prefetches the words that add_panel reads.
    static void fetch(const Place& place, std::size_t k) {
        if (k >= place.args.weight->columns) return;
        const Block b = block_at<Fmt>(place, k, 0);
        const int sub = sub_block_at<Fmt>(k);
        const int words[] = {Fmt::Codes::word_of(sub, 0), Fmt::Codes::word_of(sub, Fmt::Codes::kWords - 1),
                             Fmt::Scales::word_of(sub), Fmt::Scales::kWord};
        for (const int word : words)
            for (std::size_t at = 0; at < b.stride; at += 64)
                prefetch(b.words + static_cast<std::size_t>(word) * b.stride + at);
    }

    void end_panel(const Place& place, const float* sums) const {
        for (std::size_t g = 0; g < place.groups(); ++g, sums += kGroupRows * kLine)
            for (std::size_t v = 0; v < V; ++v) {
                const float* rows[kLanes];
                for (std::size_t row = 0; row < kLanes; ++row) rows[row] = sums + (row * V + v) * kLanes;
                f32x16 of_token[kLanes];
                transpose(rows, of_token);
                for (std::size_t t = 0; t < kLanes && v * kLanes + t < tokens; ++t)
                    write_result(place.args, token + v * kLanes + t, place.row(static_cast<int>(g)), of_token[t]);
            }
    }
};

template <class Fmt>
struct Tile {
    const PanelsOfBoth& panels;
    std::size_t token, tokens;
    const NibbleScratch& s;
    template <int V>
    void run() const {
        TokensByNibbles<Fmt, V>(panels, token, tokens, s).run();
    }
};

struct Run {
    const LinearArgs &a, &b;
    std::size_t first, last;
    float* scratch;
    template <class Fmt>
    void run() const {
        if constexpr (kByNibbles<Fmt>) {
            const NibbleScratch s(scratch);
            const std::size_t most = &a == &b ? 2 * kNibblePanels : kNibblePanels;
            constexpr std::size_t kVectors = kTable / kNibbles<Fmt>;
            const std::size_t vectors = (a.tokens + kLanes - 1) / kLanes, tiles = (vectors + kVectors - 1) / kVectors;
            for (std::size_t panel = first; panel < last; panel += most) {
                const PanelsOfBoth panels{a, b, panel, last - panel < most ? last - panel : most};
                for (std::size_t i = 0; i < tiles; ++i) {  // as even as possible, of whole vectors
                    const std::size_t from = i * vectors / tiles, to = (i + 1) * vectors / tiles;
                    const std::size_t end = to * kLanes < a.tokens ? to * kLanes : a.tokens;
                    with_height<kVectors>(to - from, Tile<Fmt>{panels, from * kLanes, end - from * kLanes, s});
                }
            }
        }
    }
};

}  // namespace

void many_tokens_by_nibbles(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last,
                            float* scratch) {
    with_format(a.weight->format, Run{a, b, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
