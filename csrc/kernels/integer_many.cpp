// Linear layers of integers for many tokens. Codes of a chunk of columns are unpacked once, as bytes, into a buffer
// that stays in the nearest cache; tiles of tokens then run over it. Sums are stored between sub-blocks and loaded
// again, so the chain is the same.
#include <type_traits>

#include "kernels/integer.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

inline constexpr int kTileTokens = kIntegerTuning.tile_tokens, kTileGroups = kIntegerTuning.tile_groups;
// Panels of one group are few rows of a model: lower tiles, for less code.
template <int G>
inline constexpr int kTokensOfTile = G % kTileGroups ? 3 : kTileTokens;

inline constexpr std::size_t kMostParts = 2;  // of codes (dot.h)
inline constexpr std::size_t kMinSub = 16;    // columns of the smallest sub-block

// Scratch: an unpacked chunk, its scales and minima, running sums of a token block, finished leaves.
struct Scratch {
    std::uint8_t* codes;  // [kStripColumns / 4, groups, parts, 64 bytes]
    float* scales;        // [kStripColumns / kMinSub, lanes]
    float* minima;        // as scales
    float* sums;          // [kTokenBlock, kWide]
    float* levels;        // [3, kTokenBlock, kWide]

    static constexpr std::size_t kCodeFloats = kStripColumns * kWide * kMostParts / sizeof(float);
    static constexpr std::size_t kScaleFloats = kStripColumns / kMinSub * kWide;
    static constexpr std::size_t kFloats = kCodeFloats + 2 * kScaleFloats + 4 * kTokenBlock * kWide;
    KARAT_INLINE explicit Scratch(float* base)
        : codes(reinterpret_cast<std::uint8_t*>(base)), scales(base + kCodeFloats), minima(scales + kScaleFloats),
          sums(minima + kScaleFloats), levels(sums + kTokenBlock * kWide) {}
};

// Unpacks columns first … first + count - 1 of a panel, whose block begins at w.
template <class Fmt, class FactorsOf, int G>
void unpack(const std::uint8_t* w, std::size_t first, std::size_t count, const Scratch& s) {
    const auto codes = Fmt::Codes::make();
    std::uint8_t* out = s.codes;
    float *scale = s.scales, *minimum = s.minima;
    constexpr std::size_t kBlock = std::size_t{G} * kGroupRows * Fmt::kBytes;
    for (std::size_t k = first; k < first + count; k += Fmt::kSub) {
        const std::uint8_t* const block = w + (k / Fmt::kColumns - first / Fmt::kColumns) * kBlock;
        const int sub = static_cast<int>(k % Fmt::kColumns) / Fmt::kSub;
        for (int c = 0; c < Fmt::kSub / 4; ++c)
            for (int g = 0; g < G; ++g) {
                const i32x16 four = codes.of(block_of<Fmt>(block, g, G), sub, c);
                FactorsOf factors;
                if constexpr (FactorsOf::kInWords) factors = FactorsOf::of(four, Fmt::Codes::kZero);
                else factors = FactorsOf::of(four);
                for (int part = 0; part < factors.kParts; ++part, out += 4 * kLanes) istore(out, factors.part[part]);
            }
        for (int g = 0; g < G; ++g, scale += kLanes) store(scale, scale_of<Fmt>(block_of<Fmt>(block, g, G), sub));
        if constexpr (Fmt::kHasMinimum)
            for (int g = 0; g < G; ++g, minimum += kLanes)
                store(minimum, minimum_of<Fmt>(block_of<Fmt>(block, g, G), sub));
    }
}

// What a tile prefetches of the next chunk as it is packed, a share while it runs over each 32 columns.
struct NextLines {
    const std::uint8_t* at;
    std::size_t bytes, share;
};

// One chunk of columns, added to sums [tokens, kWide], for TG of the panel's G groups. Formats of a kind share the
// code.
template <int kLargest, int kSub, bool kMinimum, int kDigits, int G, int TG>
struct Tile {
    static constexpr int kSteps = kSub / 4;
    static constexpr bool kIsWords = Factors<kLargest>::kInWords;
    static constexpr std::size_t kCodeBytes = std::size_t{Factors<kLargest>::kParts} * 4 * kLanes;

    const std::uint8_t* codes;  // of the first of the groups
    const float *scales, *minima;
    const std::uint8_t* x;
    std::size_t x_stride, count;
    std::int32_t zero;  // that codes are more
    float* sums;
    NextLines next;

    template <int T>
    KARAT_INLINE void run() const {
        // Members as locals: for all the compiler knows, stores below change members.
        const std::uint8_t *code = codes, *block = x;
        const float *scale = scales, *minimum = minima;
        float* const to = sums;
        const std::size_t stride = x_stride, end = count;
        const std::int32_t code_zero = zero;
        NextLines lines = next;
        for (std::size_t k = 0; k < end; k += kSub) {
            const int column = static_cast<int>(k % kDigitColumns);
            const auto of = [=](int t) { return XBlock<kDigits>{block + static_cast<std::size_t>(t) * stride}; };
            if (column == 0)
                for (const std::size_t left = lines.bytes < lines.share ? 0 : lines.bytes - lines.share;
                     lines.bytes > left; lines.at += 64, lines.bytes -= 64)
                    prefetch_far(lines.at);
            i32x16 first[T][TG], rest[T][TG];  // of int24: sums of the first digit, and of the other two
            if constexpr (kDigits == 3) {
                add_digit<0, T>(code, of, column, nullptr, first);
                add_digit<1, T>(code, of, column, nullptr, rest);
                add_digit<2, T>(code, of, column, rest, rest);
            } else if constexpr (kIsWords) {
                add_q<T>(code, of, column, rest);
            } else {
                add_digit<0, T>(code, of, column, nullptr, rest);
                if constexpr (kDigits == 2) add_digit<1, T>(code, of, column, rest, rest);
            }
            KARAT_UNROLL_STEPS
            for (int t = 0; t < T; ++t) {
                const f32x16 power = set1(of(t).power());
                for (int g = 0; g < TG; ++g) {
                    const f32x16 part = part_of<kSub>(first[t][g], rest[t][g], of(t), column, kIsWords ? 0 : code_zero);
                    float* const at = to + t * static_cast<int>(kWide) + g * kLanes;
                    f32x16 value = fma(part, load(scale + g * kLanes) * power, load(at));
                    if constexpr (kMinimum) {
                        const f32x16 of_q = set1(of(t).template value<kSub>(column));
                        value = fma(of_q, load(minimum + g * kLanes), value);
                    }
                    store(at, value);
                }
            }
            forget_stored();
            code += static_cast<std::size_t>(kSteps) * G * kCodeBytes;
            scale += G * kLanes;
            minimum += G * kLanes;
            if (column + kSub == static_cast<int>(kDigitColumns)) block += XBlock<kDigits>::kBytes;
        }
    }

private:
    // total = a sub-block's sums of code * q.
    template <int T, class Of>
    static KARAT_INLINE void add_q(const std::uint8_t* code, const Of& of, int column, i32x16 (&total)[T][TG]) {
        KARAT_UNROLL_STEPS
        for (int c = 0; c < kSteps; ++c) KARAT_UNROLL_STEPS
        for (int part = 0; part < 2; ++part) {
            i32x16 of_group[TG];
            for (int g = 0; g < TG; ++g)
                of_group[g] =
                    iload(code + (static_cast<std::size_t>(c) * G + static_cast<std::size_t>(g)) * kCodeBytes +
                          part * 4 * kLanes);
            for (int t = 0; t < T; ++t) {
                const i32x16 two = of(t).two_words(column + 4 * c + 2 * part);
                for (int g = 0; g < TG; ++g) {
                    if (c + part == 0) total[t][g] = products_of_words(of_group[g], two);
                    else add_words(total[t][g], of_group[g], two);
                }
            }
            forget_stored();
        }
    }

    // total = 256 * before (null: 0) + a sub-block's sums of code * digit. Halves of codes are multiplied one after the
    // other: accumulators of both would not fit.
    template <int kDigit, int T, class Of, class Before>
    static KARAT_INLINE void add_digit(const std::uint8_t* code, const Of& of, int column, const Before& before,
                                       i32x16 (&total)[T][TG]) {
        if constexpr (Factors<kLargest>::kParts == 1) {
            add_part<kDigit, kLargest, T>(code, of, column, before, total);
        } else {
            i32x16 high[T][TG];
            add_part<kDigit, 15, T>(code + 4 * kLanes, of, column, nullptr, high);
            add_part<kDigit, 15, T>(code, of, column, before, total);
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) total[t][g] = total[t][g] + (high[t][g] << 4);
        }
    }

    // The same of one part of the codes, which is at most kMost.
    template <int kDigit, int kMost, int T, class Of, class Before>
    static KARAT_INLINE void add_part(const std::uint8_t* code, const Of& of, int column, const Before& before,
                                      i32x16 (&total)[T][TG]) {
        Dots<kMost, kSteps> dots[T][TG];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) {
                if constexpr (std::is_same_v<Before, std::nullptr_t>) dots[t][g].begin();
                else dots[t][g].begin(before[t][g] << 8);
            }
        KARAT_UNROLL_STEPS
        for (int c = 0; c < kSteps; ++c) {
            Factors<kMost> of_group[TG];
            for (int g = 0; g < TG; ++g)
                of_group[g].part[0] =
                    iload(code + (static_cast<std::size_t>(c) * G + static_cast<std::size_t>(g)) * kCodeBytes);
            for (int t = 0; t < T; ++t) {
                const i32x16 four = of(t).four(kDigit, column + 4 * c);
                for (int g = 0; g < TG; ++g) dots[t][g].add(c, of_group[g], four);
            }
            forget_stored();  // or codes of later steps are loaded now, and accumulators wait in memory
        }
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) total[t][g] = dots[t][g].total();
    }
};

// Not inline: all formats of a kind share one function.
template <int kMost, int kLeast, class T>
KARAT_NOINLINE void run_tile(std::size_t height, const T& tile) {
    with_height<kMost, kLeast>(height, tile);
}

// One panel and up to kTokenBlock tokens from `token` on.
template <class Fmt, int kDigits, bool kOfWords, int G>
struct PanelOfMany {
    static constexpr int TG = G % kTileGroups ? 1 : kTileGroups;
    using Codes = typename Fmt::Codes;
    static constexpr int kCodes = kOfWords ? kWords : kClass<Codes::kLargest>;
    using FactorsOf = Factors<kCodes>;
    using TileOf = Tile<kCodes, Fmt::kSub, Fmt::kHasMinimum, kDigits, G, TG>;
    // Tokens are cut evenly, so no tile of more than kDirectTokens tokens is lower. Few rows of many in words are.
    static constexpr int kMost = kTokensOfTile<G>, kHalf = (kMost + 1) / 2, kFew = kDirectTokens<kDigits> + 1;
    static constexpr int kLeast = kOfWords ? 1 : kFew < kHalf ? kFew : kHalf;
    static constexpr std::size_t kBlockBytes = G * kGroupRows * Fmt::kBytes;
    static constexpr std::size_t kLineBytes = kBlockBytes * kDigitColumns / Fmt::kColumns;  // of 32 columns
    const LinearArgs& a;
    std::size_t panel, token, tokens;
    const Scratch& s;

    void run() const {
        const std::uint8_t* const w = a.weight->panel(panel);
        const std::size_t tiles = (tokens + kMost - 1) / kMost;
        std::size_t start = a.first_column;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t begin = start, end = a.leaf_ends[leaf];
            if (begin == end) {  // a leaf of no columns
                leaf_sums().begin(0, tokens);
                leaf_sums().end(a, panel, leaf, token, 0, tokens);
            }
            for (std::size_t count; start < end; start += count) {
                const std::size_t strip = kStripColumns - start % kStripColumns;
                count = end - start < strip ? end - start : strip;
                unpack<Fmt, FactorsOf, G>(w + start / Fmt::kColumns * kBlockBytes, start, count, s);
                // As many bytes of the next chunk.
                const std::uint8_t* const ahead = w + (start + count) / kDigitColumns * kLineBytes;
                const std::size_t each = (count / kDigitColumns * kLineBytes / 64 + tiles - 1) / tiles * 64;
                for (std::size_t i = 0; i < tiles; ++i) {
                    const std::size_t first = i * tokens / tiles, last = (i + 1) * tokens / tiles;
                    if (start == begin) leaf_sums().begin(first, last);
                    tile(first, last, start, count, ahead + i * each, each);
                    if (start + count == end) leaf_sums().end(a, panel, leaf, token, first, last);
                }
            }
        }
    }

private:
    KARAT_INLINE LeafSums<G> leaf_sums() const { return {s.sums, s.levels}; }

    void tile(std::size_t first, std::size_t last, std::size_t start, std::size_t count, const std::uint8_t* ahead,
              std::size_t bytes) const {
        const PlaceOfBlock<kDigits> x(a, token + first, start);
        for (int g = 0; g < G; g += TG)
            run_tile<kMost, kLeast>(
                last - first, TileOf{s.codes + static_cast<std::size_t>(g) * TileOf::kCodeBytes,
                                     s.scales + g * kLanes,
                                     s.minima + g * kLanes,
                                     a.digits + x.at,
                                     x.stride,
                                     count,
                                     Codes::kZero - FactorsOf::kLess,
                                     s.sums + first * kWide + static_cast<std::size_t>(g) * kLanes,
                                     {ahead, g == 0 ? bytes : 0, (bytes * kDigitColumns / count + 63) / 64 * 64}});
    }
};

template <class Fmt, int kDigits, bool kOfWords, int G>
void panel_of_many(const LinearArgs& a, std::size_t panel, const Scratch& s) {
    const std::size_t blocks = (a.tokens + kTokenBlock - 1) / kTokenBlock;  // even ones: no tile is too low
    for (std::size_t i = 0; i < blocks; ++i) {
        const std::size_t token = i * a.tokens / blocks, end = (i + 1) * a.tokens / blocks;
        PanelOfMany<Fmt, kDigits, kOfWords, G>{a, panel, token, end - token, s}.run();
    }
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;
    template <class Fmt, int kDigits>
    void run() const {
        constexpr std::size_t kMost = kRowsOfDigits<kDigits>;
        if constexpr (kMost == kNever) panels<Fmt, kDigits, false>();
        else if constexpr (kMost <= kDirectTokens<kDigits>) panels<Fmt, kDigits, true>();
        else a.digits_rows > kMost ? panels<Fmt, kDigits, true>() : panels<Fmt, kDigits, false>();
    }

private:
    template <class Fmt, int kDigits, bool kOfWords>
    void panels() const {
        const Scratch s(scratch);
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups
                ? panel_of_many<Fmt, kDigits, kOfWords, kPanelGroups>(a, panel, s)
                : panel_of_many<Fmt, kDigits, kOfWords, 1>(a, panel, s);
    }
};

}  // namespace

std::size_t integer_scratch_bytes() { return Scratch::kFloats * sizeof(float); }

void many_tokens_of_integers(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    with_blocks_and_digits(a, Run{a, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
