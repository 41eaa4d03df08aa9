// Linear layers of integers for many tokens, by Intel's tiles (simd/tiles.h).
//
// A tile's sums are integers below 2^24, times a power of two: float32 adds them exactly, in any order, so what a tile
// stores is `part` of the contract (IntegerKernels). Products of one tile of 16 tokens are made while sums of the tile
// before it are added up: an iteration has a piece of the one and a token or two of the other. A piece is stored two
// pieces later, because stores that wait for their products fill the core's buffers.
#include <type_traits>
#include <utility>

#include "kernels/amx_codes.h"
#include "simd/tiles.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// How sums of sub-blocks are made of x. A piece is a tile of sums: of a digit, or of the last two. A product takes as
// long for 16 columns as for 32: of sub-blocks of 16, the two digits of a piece lie beside each other (put_beside), and
// one product has both.
struct Kind {
    int sub;  // columns
    bool has_minimum;
    int digits, pieces;
    bool power_in_x;  // then tiles have it; else they have it, or not, and it goes into the scale
    bool shifted;     // codes are 16 less than they should be
    bool beside;      // digits, as said

    // Tiles of x of a sub-block, their columns, and which of them a piece has.
    constexpr int xs() const { return beside ? pieces : digits; }
    constexpr int columns() const { return beside ? 2 * sub : sub; }
    constexpr int end_x(int piece) const { return piece + 1 == pieces ? xs() : piece + 1; }
};

// A format's codes, `zero` less than their bytes, in how many pieces: sums of each must fit 24 bits. Of two digits no
// number is larger than 127 * 256 + 128, of the last two of three none larger than 128 * 256 + 128.
struct Choice {
    Kind kind;
    int zero;
};
constexpr std::int64_t kExact = 1 << 24;

template <class Fmt>
constexpr std::int64_t largest_sum(int zero, std::int64_t number) {
    const int most = Fmt::Codes::kLargest - zero;
    return Fmt::kSub * number * (most > zero ? most : zero);
}

// With the power in x, int16 alone: scale * power must be exact, as it is but for the scales of MXFP4.
template <class Fmt, int kDigits>
constexpr Choice choice_of() {
    constexpr int zero = Fmt::Codes::kZero, shift = 16;
    constexpr std::int64_t number = kDigits == 1 ? 127 : kDigits == 2 ? 32640 : 32896;
    static_assert(largest_sum<Fmt>(zero, kDigits == 1 ? 127 : 128) <= kExact);
    constexpr bool in_x = kDigits == 2 && !std::is_same_v<Fmt, MXFP4>, fits = largest_sum<Fmt>(zero, number) <= kExact;
    constexpr bool shifts = in_x && !fits && largest_sum<Fmt>(zero + shift, number) <= kExact;
    constexpr int pieces = kDigits == 1 ? 1 : fits || shifts ? kDigits - 1 : kDigits;
    constexpr bool beside = Fmt::kSub == 16 && pieces < kDigits;
    return {{Fmt::kSub, Fmt::kHasMinimum, kDigits, pieces, in_x, shifts, beside}, shifts ? zero + shift : zero};
}

// Of strips of one block where others have two: they are few, so formats share it.
template <class Fmt, int kDigits>
constexpr Choice common_choice() {
    return {{Fmt::kSub, Fmt::kHasMinimum, kDigits, kDigits, false, false, false}, Fmt::Codes::kZero};
}

// ---- products and sums ----------------------------------------------------------------------------------------------

// A strip of a panel, for tiles of tokens. What of the panel has no group is computed, and not used.
struct StripOfPanel {
    const Scratch& scratch;
    const std::uint8_t *digits, *heads;  // of the first tile's first block (digits, where they are not in scratch)
    std::size_t tiles, last_rows;        // rows of x in the last tile
    std::size_t blocks, first_block;     // of x in the strip; the first that is meant
    float* sums;                         // [rows of tiles, kWide]
    const std::uint8_t* ahead;           // what is read next of the panel,
    std::size_t lines;                   // in lines
};

template <Kind kind>
using TilesOf = Tiles<kind.columns(), kind.xs() < 3 ? 6 : 7>;

template <Kind kind, int kSubs>
struct Strip {
    static constexpr int kPieces = kSubs * kGroups * kind.pieces, kSlots = 2 * kPieces;
    static constexpr int kFirstX = 4, kFirstCodes = kind.xs() < 3 ? 6 : 7;
    static constexpr std::size_t kBesideTile = std::size_t{kSubs} * kind.xs() * kBesideBytes;
    using Tiles = TilesOf<kind>;

    // 16 tokens: what is read of x, and where sums are.
    struct Batch {
        const std::uint8_t *digits, *heads;
        std::size_t rows;  // of x
        float *parts, *sums;
    };

    f32x16 scale[kSubs][kGroups], minimum[kSubs][kGroups];

    KARAT_NOINLINE static void run(Tiles& tiles, const StripOfPanel& s) {
        Strip strip;
        for (int i = 0; i < kSubs; ++i)
            for (int g = 0; g < kGroups; ++g) {
                strip.scale[i][g] = load(s.scratch.scales + (i * kGroups + g) * kLanes);
                if constexpr (kind.has_minimum)
                    strip.minimum[i][g] = load(s.scratch.minima + (i * kGroups + g) * kLanes);
            }
        Batch before{};
        const std::uint8_t* line = s.ahead;
        const std::size_t share = (s.lines + s.tiles - 1) / s.tiles;
        std::size_t left = s.lines;
        for (std::size_t i = 0; i <= s.tiles; ++i) {
            const std::size_t rows = i + 1 < s.tiles ? kTileRows : s.last_rows;
            const std::size_t block = i * kTileRows * s.blocks + s.first_block * rows;
            const std::uint8_t* const x =
                kind.beside ? s.scratch.beside + i * kBesideTile : s.digits + block * kind.digits * kDigitRowBytes;
            const Batch now{x, s.heads + block * kHeadBytes, rows, s.scratch.parts + i % 2 * Scratch::kPartFloats,
                            s.sums + i * kTileRows * kWide};
            for (std::size_t n = left < share ? left : share; n > 0; --n, --left, line += 64) prefetch_far(line);
            strip.pieces(tiles, i < s.tiles, now, i > 0, before, s.scratch.codes,
                         std::make_integer_sequence<int, kPieces>{});
            before = now;
        }
    }

private:
    template <int... kNumbers>
    KARAT_INLINE void pieces(Tiles& tiles, bool multiplies, const Batch& now, bool sums, const Batch& before,
                             const std::uint8_t* codes, std::integer_sequence<int, kNumbers...>) const {
        (piece<kNumbers>(tiles, multiplies, now, sums, before, codes), ...);
        if (!multiplies) return;
        tiles.template store<(kPieces - 2) % 4>(now.parts + (kPieces - 2) * 256);
        tiles.template store<(kPieces - 1) % 4>(now.parts + (kPieces - 1) * 256);
    }

    // The piece's products; between them, and behind them, some tokens of the batch before.
    template <int kNumber>
    KARAT_INLINE void piece(Tiles& tiles, bool multiplies, const Batch& now, bool sums, const Batch& before,
                            const std::uint8_t* codes) const {
        constexpr int kStep = kNumber / kind.pieces, kPiece = kNumber % kind.pieces, kTile = kNumber % 4;
        constexpr int kSub = kStep / kGroups, kCodes = kFirstCodes == 6 ? 6 + kStep % 2 : 7;
        constexpr int kFirst = kFirstX + kPiece, kEnd = kFirstX + kind.end_x(kPiece);
        if (multiplies) {
            if constexpr (kStep % kGroups == 0 && kPiece == 0) load_x<kSub>(tiles, now);
            if constexpr (kPiece == 0) tiles.template load_codes<kCodes>(codes + kStep * Tiles::kCodeBytes);
            tiles.template zero<kTile>();
            tiles.template multiply<kTile, kFirst, kCodes>();
        }
        if (sums) tokens<2 * kNumber>(before);
        if (multiplies) {
            if constexpr (kFirst + 1 < kEnd) tiles.template multiply<kTile, kFirst + 1, kCodes>();
            if constexpr (kNumber >= 2) tiles.template store<(kTile + 2) % 4>(now.parts + (kNumber - 2) * 256);
        }
        if (sums) tokens<2 * kNumber + 1>(before);
    }

    template <int kSub>
    KARAT_INLINE static void load_x(Tiles& tiles, const Batch& now) {
        constexpr std::size_t kColumn = kSub * kind.sub, kBlock = kColumn / kDigitColumns;
        const std::size_t next = kind.beside ? kBesideBytes : now.rows * kDigitRowBytes;
        const std::uint8_t* const x =
            now.digits +
            (kind.beside ? kSub * kind.xs() * next : kBlock * kind.digits * next + kColumn % kDigitColumns * 2);
        tiles.template load_x<kFirstX>(x);
        if constexpr (kind.xs() > 1) tiles.template load_x<kFirstX + 1>(x + next);
        if constexpr (kind.xs() > 2) tiles.template load_x<kFirstX + 2>(x + 2 * next);
    }

    template <int kSlot>
    KARAT_INLINE void tokens(const Batch& batch) const {
        constexpr int kFirst = kSlot * 16 / kSlots, kLast = (kSlot + 1) * 16 / kSlots;
#pragma GCC unroll 16
        for (int t = kFirst; t < kLast; ++t) token(batch, t);
    }

    // A token's sub-blocks, of all groups, as the contract adds them.
    KARAT_INLINE void token(const Batch& batch, int t) const {
        float* const to = batch.sums + t * static_cast<int>(kWide);
        f32x16 sum[kGroups];
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) sum[g] = load(to + g * kLanes);
#pragma GCC unroll 4
        for (int s = 0; s < kSubs; ++s) {
            const int column = s * kind.sub, block = column / static_cast<int>(kDigitColumns);
            const Head head{batch.heads +
                            (static_cast<std::size_t>(block) * batch.rows + static_cast<std::size_t>(t)) * kHeadBytes};
#pragma GCC unroll 4
            for (int g = 0; g < kGroups; ++g) {
                const float* const at = batch.parts + ((s * kGroups + g) * kind.pieces) * 256 + t * kLanes;
                f32x16 part = load(at);
                if constexpr (kind.digits == 3) {
                    f32x16 rest = load(at + 256);
                    if constexpr (kind.pieces == 3) rest = rest + load(at + 512);
                    part = fma(part, set1(65536.0f), rest);
                } else if constexpr (kind.pieces == 2) {
                    part = part + load(at + 256);
                }
                if constexpr (kind.shifted) part = part + set1(16 * head.value());
                if constexpr (kind.power_in_x) {
                    sum[g] = fma(part, scale[s][g], sum[g]);
                } else {
                    if constexpr (kind.digits == 2) part = part * set1(head.without_power());
                    sum[g] = fma(part, scale[s][g] * set1(head.power()), sum[g]);
                }
                if constexpr (kind.has_minimum)
                    sum[g] = fma(set1(head.template value_of<kind.sub>(column)), minimum[s][g], sum[g]);
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) store(to + g * kLanes, sum[g]);
    }

    struct Head {
        const std::uint8_t* at;
        KARAT_INLINE float power() const { return read<float>(kPowerAt); }
        KARAT_INLINE float value() const { return read<float>(kValueAt); }
        // power * the sum of q of the sub-block.
        template <int kSub>
        KARAT_INLINE float value_of(int column) const {
            if constexpr (kSub == 32) return value();
            else return static_cast<float>(read<std::int32_t>(kSumsAt + column % 32 / 16 * 4)) * power();
        }
        // 1 / the power of two that is in x. Of a NaN, any: digits are NaN then.
        KARAT_INLINE float without_power() const { return float_of((254u << 23) - bits_of(power())); }

    private:
        template <class T>
        KARAT_INLINE T read(int byte) const {
            T value;
            std::memcpy(&value, at + byte, sizeof value);
            return value;
        }
    };
};

// ---- panels ---------------------------------------------------------------------------------------------------------

template <class Tiles>
struct Functions {
    void (*unpack)(const std::uint8_t*, std::size_t, std::size_t, int, const Scratch&);
    void (*run)(Tiles&, const StripOfPanel&);
};
template <class Fmt, Choice kChoice, int kColumns>
KARAT_INLINE constexpr Functions<TilesOf<kChoice.kind>> functions() {
    return {unpack<Fmt, kChoice.zero, kChoice.kind.beside>, Strip<kChoice.kind, kColumns / Fmt::kSub>::run};
}

// All that is left to know of a format and a width.
template <class Tiles>
struct Layer {
    Functions<Tiles> strip, half_strip;  // of 64 columns, of 32
    bool beside;                 // digits: all strips have 32 columns, so that sums of one fit the nearest cache
    std::size_t columns, bytes;  // of a block
};

// Panels first … last - 1, at most kPanelsAtOnce, for the tokens of tiles first_tile … end_tile - 1.
template <int kDigits, class Tiles>
struct Panels {
    const LinearArgs& a;
    const Layer<Tiles>& layer;
    const RowsOfTiles<kDigits> x;
    const Scratch scratch;
    Tiles& tiles;

    KARAT_INLINE Panels(const LinearArgs& a, const Layer<Tiles>& layer, float* base, Tiles& tiles)
        : a(a), layer(layer), x(const_cast<std::uint8_t*>(a.digits), a.digits_rows, a.weight->columns), scratch(base),
          tiles(tiles) {}

    void run(std::size_t first, std::size_t last, std::size_t first_tile, std::size_t end_tile) const {
        std::size_t start = a.first_column;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t end = a.leaf_ends[leaf];
            for (std::size_t panel = first; panel < last; ++panel) sums(panel - first, first_tile, end_tile).begin();
            for (std::size_t count; start < end; start += count) {
                const std::size_t strip = layer.beside ? kDigitColumns : kTileStripColumns - start % kTileStripColumns;
                count = end - start < strip ? end - start : strip;
                if constexpr (kDigits > 1)
                    if (layer.beside) put_beside(x, first_tile, end_tile, start, scratch);
                const Functions<Tiles>& f = count == kTileStripColumns ? layer.strip : layer.half_strip;
                for (std::size_t panel = first; panel < last; ++panel)
                    one_strip(f, panel, panel - first, first_tile, end_tile, start, count);
            }
            for (std::size_t panel = first; panel < last; ++panel)
                sums(panel - first, first_tile, end_tile).end(a, panel, leaf);
        }
    }

private:
    // Of a panel: the sums of the call's tokens among those of whole tiles.
    struct Sums {
        float* all;
        std::size_t skipped, token, tokens;  // of the first tile; of the call
        KARAT_INLINE void begin() const { leaves<1>().begin(0, tokens); }
        KARAT_INLINE void end(const LinearArgs& a, std::size_t panel, std::size_t leaf) const {
            if (a.weight->panel_groups(panel) == kPanelGroups)
                leaves<kPanelGroups>().end(a, panel, leaf, token, 0, tokens);
            else leaves<1>().end(a, panel, leaf, token, 0, tokens);
        }

    private:
        template <std::size_t kNumber>
        KARAT_INLINE LeafSums<kNumber> leaves() const {
            return {all + skipped * kWide, all + Scratch::kSumFloats};
        }
    };

    KARAT_INLINE Sums sums(std::size_t which, std::size_t first_tile, std::size_t end_tile) const {
        const std::size_t begin = first_tile * kTileRows, end = end_tile * kTileRows;
        const std::size_t first = begin < a.first_row ? a.first_row : begin, stop = a.first_row + a.tokens;
        return {scratch.panels + which * Scratch::kPanelFloats, first - begin, first - a.first_row,
                (stop < end ? stop : end) - first};
    }

    void one_strip(const Functions<Tiles>& f, std::size_t panel, std::size_t which, std::size_t first_tile,
                   std::size_t end_tile, std::size_t start, std::size_t count) const {
        const auto groups = static_cast<int>(a.weight->panel_groups(panel));
        const std::size_t block_bytes = static_cast<std::size_t>(groups) * kGroupRows * layer.bytes;
        const std::uint8_t* const w = a.weight->panel(panel) + start / layer.columns * block_bytes;
        f.unpack(w, start, count, groups, scratch);
        const std::size_t block = x.first_block(first_tile, start), bytes = count * block_bytes / layer.columns;
        f.run(tiles, {.scratch = scratch,
                      .digits = x.digits_of(block),
                      .heads = x.head(block),
                      .tiles = end_tile - first_tile,
                      .last_rows = x.rows_of(end_tile - 1),
                      .blocks = x.blocks_of_strip(start),
                      .first_block = start % kTileStripColumns / kDigitColumns,
                      .sums = scratch.panels + which * Scratch::kPanelFloats,
                      .ahead = w + bytes,
                      .lines = bytes / 64});
    }
};

template <class Fmt, int kDigits>
constexpr auto layer() {
    constexpr Choice kOwn = choice_of<Fmt, kDigits>();
    Layer<TilesOf<kOwn.kind>> layer{{}, {}, kOwn.kind.beside, Fmt::kColumns, Fmt::kBytes};
    if constexpr (kOwn.kind.beside) layer.half_strip = functions<Fmt, kOwn, 32>();
    else layer.strip = functions<Fmt, kOwn, 64>();
    if constexpr (Fmt::kColumns < kTileStripColumns)  // leaves may cut a strip; they do not cut blocks
        layer.half_strip = functions<Fmt, common_choice<Fmt, kDigits>(), 32>();
    return layer;
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;

    template <class Fmt, int kDigits>
    void run() const {
        constexpr auto kLayer = layer<Fmt, kDigits>();
        panels<kDigits>(kLayer);
    }

private:
    template <int kDigits, class Tiles>
    void panels(const Layer<Tiles>& layer) const {
        Tiles tiles;  // for all panels: configuring them takes hundreds of cycles
        const Panels<kDigits, Tiles> panels(a, layer, scratch, tiles);
        const std::size_t begin = a.first_row / kTileRows, end = (a.first_row + a.tokens + kTileRows - 1) / kTileRows;
        for (std::size_t panel = first, next; panel < last; panel = next) {
            next = panel + kPanelsAtOnce < last ? panel + kPanelsAtOnce : last;
            for (std::size_t tile = begin, stop; tile < end; tile = stop) {
                stop = tile + kTilesAtOnce < end ? tile + kTilesAtOnce : end;
                panels.run(panel, next, tile, stop);
            }
        }
        tiles.release();
    }
};

}  // namespace

std::size_t tile_scratch_bytes() { return Scratch::kFloats * sizeof(float); }

void many_tokens_by_tiles(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    if (a.tokens == 0) return;
    with_blocks_and_digits(a, Run{a, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE
