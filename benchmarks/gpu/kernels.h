// Q4_0 weights times int16 activations, contract 5 (karat.ops.integers), on Karat's packed matrices (contract/packed.h)
// and rows of digits (contract/activations.h). Prototype of csrc/gpu.
#pragma once

#include "simt.h"

namespace karat_gpu {
using namespace simt;
using u8 = std::uint8_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;

constexpr int kBlock = 32, kBlockBytes = 18, kPanelRows = 64, kGroupRows = 16, kMaxLeaves = 8;
constexpr int kDigitBytes = 80, kHeader = 16;  // DigitBlock<2>: power, two sums, power * sum; 32 first digits, 32 last

struct LinearArgs {
    const u8* weight;  // packed Q4_0
    int rows, columns, tokens;
    const u8* digits;       // strips of all tokens
    const u8* spread;       // bf16 planes [blocks, 2, tokens rounded up to 128, 64 bytes] (spread_digits), or null
    float* out;             // [tokens, rows]
    const float* bias;      // or null
    const float* residual;  // as out, or null
    int num_leaves;
    int leaf_ends[kMaxLeaves];

    SIMT int blocks() const { return columns / kBlock; }
    SIMT int wide() const { return (rows + kGroupRows - 1) / kGroupRows / 4; }
};

// Where a block of a token lies among the digits of `rows` rows: strips of 256 columns, row by row.
SIMT std::size_t place_of_block(int rows, int columns, int row, int block) {
    const int first = block / 8 * 8, left = columns / kBlock - first, strip = left < 8 ? left : 8;
    return (static_cast<std::size_t>(first) * rows + static_cast<std::size_t>(row) * strip + (block - first)) *
           kDigitBytes;
}

// ---- rows of float32 as digits: a thread has a block of 32 columns ----------------------------------------------------
struct QuantiseArgs {
    const float* x;  // [rows, columns]
    int rows, columns;
    u8* out;
};

template <class Cta>
SIMT void quantise_int16(Cta& cta, const QuantiseArgs& a) {
    cta.each([&](int thread) {
        const int item = cta.x() * cta.threads() + thread, blocks = a.columns / kBlock;
        if (item >= a.rows * blocks) return;
        const int row = item / blocks, block = item % blocks;
        const float* const x = a.x + static_cast<std::size_t>(row) * a.columns + block * kBlock;
        u32 bits = 0;
        for (int i = 0; i < kBlock; ++i) {
            const u32 magnitude = bits_of(x[i]) & 0x7fffffffu;
            bits = magnitude > bits ? magnitude : bits;
        }
        const bool finite = bits < 0x7f800000u;
        const bool above = nearest(float_of((bits & 0x7fffffu) | (126 + 15) << 23)) > 32639;
        int exponent = static_cast<int>(bits >> 23) - (126 + 15) + above;
        exponent = exponent < -102 ? -102 : exponent;
        const float power = float_of(static_cast<u32>(exponent + 127) << 23);
        const float by = float_of(static_cast<u32>(127 - exponent) << 23);
        const bool fits = finite && exponent <= 105, any = (finite ? float_of(bits) : 0.0f) * by > 0.5f;
        u32 words[kDigitBytes / 4] = {};
        i32 sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            const i32 q = fits ? nearest(x[i] * by) : 0;
            const i32 last = static_cast<std::int8_t>(q & 255), first = (q - last) >> 8;
            sums[i / 16] += q;
            words[4 + i / 4] |= (static_cast<u32>(first) & 255u) << (8 * (i % 4));
            words[12 + i / 4] |= (static_cast<u32>(last) & 255u) << (8 * (i % 4));
        }
        const float kept = !fits ? float_of(0x7fc00000u) : any ? power : 1.0f;
        words[0] = bits_of(kept);
        words[1] = static_cast<u32>(sums[0]);
        words[2] = static_cast<u32>(sums[1]);
        words[3] = bits_of(float_of_int(sums[0] + sums[1]) * kept);
        u32* const out = reinterpret_cast<u32*>(a.out + place_of_block(a.rows, a.columns, row, block));
#pragma unroll
        for (int i = 0; i < kDigitBytes / 4; ++i) out[i] = words[i];
    });
}

// ---- one token --------------------------------------------------------------------------------------------------------
// A block of threads has 32 R rows of a wide panel (R = 2: all of it), a lane R of them. With leaves, a warp has a
// leaf, and keeps its chain in registers. With one leaf, eight warps compute the parts of 32 blocks of columns at a
// time, four each; then the first threads, a row each, add them to the chain, in order, while the others go on.
template <int R>
struct Words {
    u32 v[R];
};
template <>
struct alignas(8) Words<2> {
    u32 v[2];
};

constexpr int kWarps = 8, kAtOnce = 4, kChunk = kWarps * kAtOnce;

template <int R>
struct Batch {  // of kAtOnce blocks
    Words<R> word[kAtOnce][4];
    u32 scale[kAtOnce];  // R halves
};

template <class Cta, int R>
struct Gemv {
    Cta& cta;
    const LinearArgs& a;
    const u8* panel;  // its first block
    int lane_rows;    // of the panel: 64 or 16
    int first_row;    // in the panel, of this block of threads

    SIMT std::size_t block_bytes() const { return static_cast<std::size_t>(lane_rows) * kBlockBytes; }
    SIMT bool has(int lane) const { return first_row + R * lane < lane_rows; }

    SIMT Batch<R> load(int lane, int block, int step, int end) const {
        Batch<R> b;
        const int row = has(lane) ? first_row + R * lane : 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int at = block + i * step < end ? block + i * step : end - 1;
            const u8* const from = panel + at * block_bytes();
            if constexpr (R == 2) b.scale[i] = cta.template load<u32>(from + 2 * row);
            else b.scale[i] = cta.template load<std::uint16_t>(from + 2 * row);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                b.word[i][c] = cta.template load<Words<R>>(from + 2 * lane_rows + 4 * (lane_rows * c + row));
        }
        return b;
    }

    // The exact sum of code * q of a block, of each row.
    template <class X>
    SIMT void parts(const Batch<R>& b, int i, const X& x, int block, float (&part)[R]) const {
        const int at = block * kDigitBytes;
        const U4 head = x.template get_as<U4>(at);
        const i32 least = -8 * (static_cast<i32>(head.v[1]) + static_cast<i32>(head.v[2]));
        i32 first[R], last[R];
#pragma unroll
        for (int r = 0; r < R; ++r) first[r] = 0, last[r] = least;
        U4 digits[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) digits[j] = x.template get_as<U4>(at + kHeader + 16 * j);
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const u32 word = b.word[i][c].v[r], low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
                first[r] = dot4(digits[0].v[c], low, first[r]);
                first[r] = dot4(digits[1].v[c], high, first[r]);
                last[r] = dot4(digits[2].v[c], low, last[r]);
                last[r] = dot4(digits[3].v[c], high, last[r]);
            }
#pragma unroll
        for (int r = 0; r < R; ++r) part[r] = float_of_int(first[r] * 256 + last[r]);
    }
};

SIMT void write_out(const LinearArgs& a, int row, float sum) {
    if (row >= a.rows) return;
    if (a.bias) sum = sum + a.bias[row];
    if (a.residual) sum = sum + a.residual[row];
    a.out[row] = sum;
}

// Blocks of threads: rows of wide panels by 32 R, then one for each panel of 16 rows.
template <int R>
SIMT int gemv_blocks(const LinearArgs& a) {
    const int groups = (a.rows + kGroupRows - 1) / kGroupRows;
    return groups / 4 * (2 / R) + groups % 4;
}
template <int R>
SIMT int gemv_shared(const LinearArgs& a) {
    return a.blocks() * kDigitBytes + 2 * kChunk * 32 * R * 8 + 256;
}

struct Nothing {
    SIMT void operator()() const {}
};

// `before_digits` is called when the first weights are on their way: a kernel that was launched early waits there for
// the digits.
template <int R, bool kLeaves, class Cta, class F = Nothing>
SIMT void q4_gemv(Cta& cta, const LinearArgs& a, const F& before_digits = {}) {
    const int blocks = a.blocks(), wide = a.wide() * (2 / R);
    const int panel = cta.x() < wide ? cta.x() / (2 / R) : a.wide() + cta.x() - wide;
    const int first_group = cta.x() < wide ? panel * 4 : a.wide() * 3 + panel;
    Gemv<Cta, R> g{cta, a, a.weight + static_cast<std::size_t>(first_group) * kGroupRows * blocks * kBlockBytes,
                   cta.x() < wide ? kPanelRows : kGroupRows, cta.x() < wide ? cta.x() % (2 / R) * 32 : 0};
    const int row0 = first_group * kGroupRows + g.first_row;

    auto x = cta.template shared<u8>(blocks * kDigitBytes);
    const auto bring_digits = [&] {
        before_digits();
        cta.each([&](int thread) {
            for (int i = thread; i < blocks * kDigitBytes / 16; i += cta.threads())
                cta.copy16(x, 16 * i, a.digits + 16 * i);
        });
        cta.commit();
        cta.template wait<0>();
        cta.sync();
    };

    if constexpr (kLeaves) {
        auto leaf_sums = cta.template shared<float>(kMaxLeaves * 32 * R);
        PerThread<Cta, Batch<R>> next(cta);
        cta.each([&](int thread) {  // a warp a leaf
            const int leaf = thread / 32, start = leaf ? a.leaf_ends[leaf - 1] / kBlock : 0;
            if (const int end = a.leaf_ends[leaf] / kBlock; start < end)
                next[thread] = g.load(thread % 32, start, 1, end);
        });
        bring_digits();
        cta.each([&](int thread) {
            const int leaf = thread / 32, lane = thread % 32, end = a.leaf_ends[leaf] / kBlock;
            float sum[R];
#pragma unroll
            for (int r = 0; r < R; ++r) sum[r] = 0;
            for (int block = leaf ? a.leaf_ends[leaf - 1] / kBlock : 0; block < end; block += kAtOnce) {
                const Batch<R> batch = next[thread];
                if (block + kAtOnce < end) next[thread] = g.load(lane, block + kAtOnce, 1, end);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    if (block + i >= end) break;
                    float part[R];
                    g.parts(batch, i, x, block + i, part);
                    const float power = float_of(x.template get_as<u32>((block + i) * kDigitBytes));
#pragma unroll
                    for (int r = 0; r < R; ++r)
                        sum[r] = fused(part[r], float_of_half(batch.scale[i] >> (16 * r)) * power, sum[r]);
                }
            }
#pragma unroll
            for (int r = 0; r < R; ++r) leaf_sums.set((leaf * 32 + lane) * R + r, sum[r]);
        });
        cta.sync();
        cta.each([&](int thread) {
            if (thread >= 32 * R || g.first_row + thread >= g.lane_rows) return;
            const auto leaf = [&](int i) { return leaf_sums.get(i * 32 * R + thread); };
            write_out(a, row0 + thread,
                      ((leaf(0) + leaf(1)) + (leaf(2) + leaf(3))) + ((leaf(4) + leaf(5)) + (leaf(6) + leaf(7))));
        });
    } else {
        auto parts = cta.template shared<float>(2 * kChunk * 32 * R);
        auto scales = cta.template shared<u32>(2 * kChunk * 32);  // R halves
        PerThread<Cta, Batch<R>> next(cta);
        PerThread<Cta, float> sum(cta);
        cta.each([&](int thread) {
            sum[thread] = 0;
            next[thread] = g.load(thread % 32, thread / 32, kWarps, blocks);
        });
        bring_digits();
        for (int chunk = 0; chunk < blocks; chunk += kChunk) {
            const int buffer = chunk / kChunk % 2 * kChunk * 32;
            cta.each([&](int thread) {
                const int warp = thread / 32, lane = thread % 32;
                const Batch<R> batch = next[thread];
                if (chunk + kChunk + warp < blocks) next[thread] = g.load(lane, chunk + kChunk + warp, kWarps, blocks);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    const int in_chunk = warp + i * kWarps, block = chunk + in_chunk;
                    if (block >= blocks) break;
                    float part[R];
                    g.parts(batch, i, x, block, part);
#pragma unroll
                    for (int r = 0; r < R; ++r) parts.set((buffer + in_chunk * 32 + lane) * R + r, part[r]);
                    scales.set(buffer + in_chunk * 32 + lane, batch.scale[i]);
                }
            });
            cta.sync();
            cta.each([&](int thread) {
                if (thread >= 32 * R) return;
                const int count = blocks - chunk < kChunk ? blocks - chunk : kChunk;
                float s = sum[thread];
#pragma unroll 8
                for (int i = 0; i < count; ++i) {
                    const u32 two = scales.get(buffer + i * 32 + thread / R);
                    const float scale = float_of_half(R == 2 ? two >> (thread % 2 * 16) : two);
                    const float power = float_of(x.template get_as<u32>((chunk + i) * kDigitBytes));
                    s = fused(parts.get((buffer + i * 32) * R + thread), scale * power, s);
                }
                sum[thread] = s;
            });
        }
        cta.each([&](int thread) {
            if (thread < 32 * R && g.first_row + thread < g.lane_rows) write_out(a, row0 + thread, sum[thread]);
        });
    }
}

// ---- many tokens: 128 rows x 128 tokens a block of threads; eight warps, 32 rows x 64 tokens each ----------------------
// A lane reads word t of rows 4 g … 4 g + 3 in 16 bytes: rows 4 g + 2 m and 4 g + 2 m + 1 are rows g and g + 8 of tile
// m. The nibbles of a word are, as they lie, the columns that m16n8k32 wants of a lane.
constexpr int kTileRows = 128, kTileTokens = 128, kTileThreads = 256;

struct TileSums { float v[2][8][4]; };  // [tile of rows, tile of tokens, register]
struct TileWeights {
    U4 words;
    U2 scales;
};

template <class Cta>
struct Tile {
    Cta& cta;
    const LinearArgs& a;

    SIMT int panel(int warp) const { return 2 * cta.x() + warp % 4 / 2; }
    SIMT int row(int thread) const {  // the first of four
        return panel(thread / 32) * kPanelRows + thread / 32 % 2 * 32 + thread % 32 / 4 * 4;
    }
    SIMT int first_token() const { return cta.y() * kTileTokens; }

    SIMT TileWeights load(int thread, int block) const {
        const int warp = thread / 32, lane = thread % 32, in_panel = warp % 2 * 32 + lane / 4 * 4;
        const int wide = a.wide(), p = panel(warp) < wide ? panel(warp) : wide - 1;
        const u8* const from = a.weight + (static_cast<std::size_t>(p) * a.blocks() + block) * kPanelRows * kBlockBytes;
        return {cta.template load<U4>(from + 2 * kPanelRows + 4 * (kPanelRows * (lane % 4) + in_panel)),
                cta.template load<U2>(from + 2 * in_panel)};
    }
    // Of leaf z: if there are several, out is [leaves, tokens, rows], and the tree comes after.
    SIMT void write(int thread, const TileSums& s) const {
        const int lane = thread % 32, to = row(thread);
        if (panel(thread / 32) >= a.wide()) return;
        float* const out = a.out + static_cast<std::size_t>(cta.z()) * a.tokens * a.rows;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int token = first_token() + thread / 128 * 64 + n * 8 + lane % 4 * 2 + c;
                if (token >= a.tokens) continue;
                float* const at = out + static_cast<std::size_t>(token) * a.rows + to;
                at[0] = s.v[0][n][c], at[1] = s.v[0][n][c + 2], at[2] = s.v[1][n][c], at[3] = s.v[1][n][c + 2];
            }
    }
};

// By integers of 8 bits: the codes, times 16, with the first digits, then with the last ones.
constexpr int kByteStages = 4;
SIMT int tile_bytes_shared() { return kByteStages * kTileTokens * kDigitBytes; }

template <class Cta>
SIMT void q4_tile_bytes(Cta& cta, const LinearArgs& a) {
    Tile<Cta> tile{cta, a};
    const int start = cta.z() ? a.leaf_ends[cta.z() - 1] / kBlock : 0, end = a.leaf_ends[cta.z()] / kBlock;
    auto x = cta.template shared<u8>(kByteStages * kTileTokens * kDigitBytes);
    const auto fetch = [&](int block) {
        if (block < end)
            cta.each([&](int thread) {
                for (int i = thread; i < kTileTokens * 5; i += kTileThreads) {
                    const int token = tile.first_token() + i / 5;
                    const bool there = token < a.tokens;
                    cta.copy16(x, (block % kByteStages * kTileTokens + i / 5) * kDigitBytes + i % 5 * 16,
                               a.digits + place_of_block(a.tokens, a.columns, there ? token : 0, block) + i % 5 * 16,
                               there);
                }
            });
        cta.commit();
    };
    PerThread<Cta, TileSums> sums(cta);
    PerThread<Cta, TileWeights> next(cta);
    cta.each([&](int thread) {
        sums[thread] = TileSums{};
        if (start < end) next[thread] = tile.load(thread, start);
    });
#pragma unroll
    for (int i = 0; i < kByteStages - 1; ++i) fetch(start + i);
    for (int block = start; block < end; ++block) {
        cta.template wait<kByteStages - 2>();
        cta.sync();
        fetch(block + kByteStages - 1);
        cta.warps([&](auto& warp) {
            PerLane<U4> codes[2];
            PerLane<float[4]> scale;
            warp.each([&](int lane) {
                const int thread = 32 * warp.index + lane;
                const TileWeights w = next[thread];
                if (block + 1 < end) next[thread] = tile.load(thread, block + 1);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    codes[i / 2][lane].v[i % 2] = (w.words.v[i] << 4 ^ 0x80808080u) & 0xf0f0f0f0u;
                    codes[i / 2][lane].v[2 + i % 2] = (w.words.v[i] ^ 0x80808080u) & 0xf0f0f0f0u;
                    scale[lane][i] = float_of_half(w.scales.v[i / 2] >> (i % 2 * 16)) * 0.0625f;
                }
            });
            const int base = (block % kByteStages * kTileTokens + warp.index / 4 * 64) * kDigitBytes;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                PerLane<U2> first, last;
                PerLane<float[2]> power;
                warp.each([&](int lane) {
                    const int at = base + (n * 8 + lane / 4) * kDigitBytes + kHeader + lane % 4 * 4;
                    first[lane] = {{x.template get_as<u32>(at), x.template get_as<u32>(at + 16)}};
                    last[lane] = {{x.template get_as<u32>(at + 32), x.template get_as<u32>(at + 48)}};
                    for (int c = 0; c < 2; ++c)
                        power[lane][c] =
                            float_of(x.template get_as<u32>(base + (n * 8 + lane % 4 * 2 + c) * kDigitBytes));
                });
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    PerLane<i32[4]> acc;
                    warp.each([&](int lane) {
                        for (int r = 0; r < 4; ++r) acc[lane][r] = 0;
                    });
                    warp.mma_bytes(acc, codes[m], first);
                    warp.each([&](int lane) {
                        for (int r = 0; r < 4; ++r) acc[lane][r] *= 256;
                    });
                    warp.mma_bytes(acc, codes[m], last);
                    warp.each([&](int lane) {
                        TileSums& s = sums[32 * warp.index + lane];
#pragma unroll
                        for (int r = 0; r < 4; ++r)
                            s.v[m][n][r] = fused(float_of_int(acc[lane][r]),
                                                 scale[lane][2 * m + r / 2] * power[lane][r % 2], s.v[m][n][r]);
                    });
                }
            }
        });
    }
    cta.each([&](int thread) { tile.write(thread, sums[thread]); });
}

// By bf16: a digit times the block's power, a power of two, is exact in bf16, and so is a code. Their sums in float32
// are exact as long as |sum of code * q| <= 2^24, in any order. So the tensor cores give part * power, and all that is
// left is one fused multiply-add. The order of columns within a block is free: B is stored as A's nibbles lie.
constexpr int kSpreadStages = 3, kSpreadBytes = 64;  // a token's block in a plane
SIMT int tile_bf16_shared() { return kSpreadStages * 2 * kTileTokens * kSpreadBytes; }

struct SpreadArgs {
    const u8* digits;
    int tokens, columns;
    u8* out;
};

// A thread has a block of a token. Words of a plane, for each t: columns (4 t, 4 t + 2), (16 + 4 t, 18 + 4 t),
// (4 t + 1, 4 t + 3), (17 + 4 t, 19 + 4 t).
template <class Cta>
SIMT void spread_digits(Cta& cta, const SpreadArgs& a) {
    cta.each([&](int thread) {
        const int item = cta.x() * cta.threads() + thread, blocks = a.columns / kBlock;
        const int padded = (a.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
        if (item >= padded * blocks) return;
        const int token = item % padded, block = item / padded;
        const u8* const from = a.digits + place_of_block(a.tokens, a.columns, token < a.tokens ? token : 0, block);
        const float power = float_of(*reinterpret_cast<const u32*>(from));
        for (int plane = 0; plane < 2; ++plane) {
            u32* const out = reinterpret_cast<u32*>(
                a.out + ((static_cast<std::size_t>(block) * 2 + plane) * padded + token) * kSpreadBytes);
            const auto number = [&](int column) {
                const i32 digit = static_cast<std::int8_t>(from[kHeader + 32 * plane + column]);
                return bits_of(float_of_int(plane == 0 ? 256 * digit : digit) * power) >> 16;
            };
            for (int t = 0; t < 4; ++t)
                for (int pair = 0; pair < 4; ++pair) {
                    const int column = 4 * t + pair % 2 * 16 + pair / 2;
                    out[4 * t + pair] = token < a.tokens ? number(column) | number(column + 2) << 16 : 0;
                }
        }
    });
}

// The same numbers as wgmma reads them: [blocks, tiles of 128 tokens][plane][step of 16 columns][half][8 tokens of 16
// bytes in a row]. A tile's block is 16 KB in one piece.
constexpr int kTileBytes = 16384, kHalf = 2048;

template <class Cta>
SIMT void spread_for_wgmma(Cta& cta, const SpreadArgs& a) {
    cta.each([&](int thread) {
        const int item = cta.x() * cta.threads() + thread, blocks = a.columns / kBlock;
        const int padded = (a.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
        if (item >= padded * blocks) return;
        const int token = item % padded, block = item / padded;
        const u8* const from = a.digits + place_of_block(a.tokens, a.columns, token < a.tokens ? token : 0, block);
        const float power = float_of(*reinterpret_cast<const u32*>(from));
        u8* const tile =
            a.out + (static_cast<std::size_t>(block) * (padded / kTileTokens) + token / kTileTokens) * kTileBytes;
        for (int part = 0; part < 8; ++part) {  // plane, step, half
            const int plane = part / 4, pair = part % 4;
            U4 words;
            for (int t = 0; t < 4; ++t) {
                const int column = 4 * t + pair % 2 * 16 + pair / 2;
                const auto number = [&](int c) {
                    const i32 digit = static_cast<std::int8_t>(from[kHeader + 32 * plane + c]);
                    return bits_of(float_of_int(plane == 0 ? 256 * digit : digit) * power) >> 16;
                };
                words.v[t] = token < a.tokens ? number(column) | number(column + 2) << 16 : 0;
            }
            *reinterpret_cast<U4*>(tile + part * kHalf + token % kTileTokens * 16) = words;
        }
    });
}

template <class Cta>
SIMT void q4_tile_bf16(Cta& cta, const LinearArgs& a) {
    Tile<Cta> tile{cta, a};
    const int start = cta.z() ? a.leaf_ends[cta.z() - 1] / kBlock : 0, end = a.leaf_ends[cta.z()] / kBlock;
    constexpr int kPlane = kTileTokens * kSpreadBytes;
    const std::size_t padded = static_cast<std::size_t>((a.tokens + kTileTokens - 1) / kTileTokens) * kTileTokens;
    auto x = cta.template shared<u8>(kSpreadStages * 2 * kPlane);
    const auto fetch = [&](int block) {
        if (block < end)
            cta.each([&](int thread) {
#pragma unroll
                for (int i = 0; i < 2 * kPlane / 16 / kTileThreads; ++i) {
                    const int at = (i * kTileThreads + thread) * 16, plane = at / kPlane;
                    cta.copy16(x, block % kSpreadStages * 2 * kPlane + at,
                               a.spread +
                                   ((static_cast<std::size_t>(block) * 2 + plane) * padded + tile.first_token()) *
                                       kSpreadBytes +
                                   at % kPlane);
                }
            });
        cta.commit();
    };
    PerThread<Cta, TileSums> sums(cta);
    PerThread<Cta, TileWeights> next(cta);
    cta.each([&](int thread) {
        sums[thread] = TileSums{};
        if (start < end) next[thread] = tile.load(thread, start);
    });
#pragma unroll
    for (int i = 0; i < kSpreadStages - 1; ++i) fetch(start + i);
    for (int block = start; block < end; ++block) {
        cta.template wait<kSpreadStages - 2>();
        cta.sync();
        fetch(block + kSpreadStages - 1);
        cta.warps([&](auto& warp) {
            PerLane<U4> codes[2][2];  // [tile, step of 16 columns]
            PerLane<float[4]> scale;
            warp.each([&](int lane) {
                const int thread = 32 * warp.index + lane;
                const TileWeights w = next[thread];
                if (block + 1 < end) next[thread] = tile.load(thread, block + 1);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (int pair = 0; pair < 4; ++pair)
                        codes[i / 2][pair / 2][lane].v[i % 2 + pair % 2 * 2] =
                            minus_136((w.words.v[i] >> (4 * pair) & 0x000f000fu) | 0x43004300u);
                    scale[lane][i] = float_of_half(w.scales.v[i / 2] >> (i % 2 * 16));
                }
            });
            const int base = block % kSpreadStages * 2 * kPlane + warp.index / 4 * 64 * kSpreadBytes;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                PerLane<U2> columns[2][2];  // [plane, step]
                warp.each([&](int lane) {
#pragma unroll
                    for (int plane = 0; plane < 2; ++plane) {
                        const U4 four = x.template get_as<U4>(base + plane * kPlane +
                                                              (n * 8 + lane / 4) * kSpreadBytes + lane % 4 * 16);
                        columns[plane][0][lane] = {{four.v[0], four.v[1]}};
                        columns[plane][1][lane] = {{four.v[2], four.v[3]}};
                    }
                });
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    PerLane<float[4]> acc;
                    warp.each([&](int lane) {
                        for (int r = 0; r < 4; ++r) acc[lane][r] = 0;
                    });
#pragma unroll
                    for (int plane = 0; plane < 2; ++plane)
#pragma unroll
                        for (int step = 0; step < 2; ++step) warp.mma_bf16(acc, codes[m][step], columns[plane][step]);
                    warp.each([&](int lane) {
                        TileSums& s = sums[32 * warp.index + lane];
#pragma unroll
                        for (int r = 0; r < 4; ++r)
                            s.v[m][n][r] = fused(acc[lane][r], scale[lane][2 * m + r / 2], s.v[m][n][r]);
                    });
                }
            }
        });
    }
    cta.each([&](int thread) { tile.write(thread, sums[thread]); });
}

// By wgmma (sm_90a): two groups of four warps have a wide panel of 64 rows each, times 128 tokens. They meet once in
// four blocks; between, one adds sums while the other has the tensor cores. (DeepGEMM's FP8 kernels have this shape:
// four wgmma, then one multiply-add for each accumulator.)
constexpr int kGroupBlocks = 4, kGroupStages = 3;
SIMT int tile_wgmma_shared() { return kGroupStages * kGroupBlocks * kTileBytes; }

struct GroupWeights {
    U2 words;
    u32 scales;
};

template <class Cta>
SIMT void q4_tile_wgmma(Cta& cta, const LinearArgs& a) {
    const int start = cta.z() ? a.leaf_ends[cta.z() - 1] / kBlock : 0, end = a.leaf_ends[cta.z()] / kBlock;
    const int tiles = (a.tokens + kTileTokens - 1) / kTileTokens;
    auto x = cta.template shared<u8>(kGroupStages * kGroupBlocks * kTileBytes);
    const auto place = [&](int block) { return (block - start) % (kGroupStages * kGroupBlocks) * kTileBytes; };
    const auto fetch = [&](int first) {
        for (int block = first; block < first + kGroupBlocks && block < end; ++block)
            cta.each([&](int thread) {
#pragma unroll
                for (int i = 0; i < kTileBytes / 16 / kTileThreads; ++i) {
                    const int at = (i * kTileThreads + thread) * 16;
                    cta.copy16(x, place(block) + at,
                               a.spread + (static_cast<std::size_t>(block) * tiles + cta.y()) * kTileBytes + at);
                }
            });
        cta.commit();
    };
    const auto panel_of = [&](int thread) { return 2 * cta.x() + thread / 128; };
    const auto row_of = [&](int thread) { return thread % 128 / 32 * 16 + thread % 32 / 4 * 2; };  // the first of two
    const auto load = [&](int thread, int block) {
        const int p = panel_of(thread) < a.wide() ? panel_of(thread) : a.wide() - 1, row = row_of(thread);
        const u8* const from = a.weight + (static_cast<std::size_t>(p) * a.blocks() + block) * kPanelRows * kBlockBytes;
        return GroupWeights{cta.template load<U2>(from + 2 * kPanelRows + 4 * (kPanelRows * (thread % 4) + row)),
                            cta.template load<u32>(from + 2 * row)};
    };
    PerThread<Cta, Acc> sums(cta), acc(cta);
    PerThread<Cta, Frags> codes(cta);
    PerThread<Cta, GroupWeights> next(cta);
    PerThread<Cta, u32> scales(cta);
    cta.each([&](int thread) {
        for (float& v : sums[thread].v) v = 0;
        if (start < end) next[thread] = load(thread, start);
    });
#pragma unroll
    for (int i = 0; i < kGroupStages - 1; ++i) fetch(start + i * kGroupBlocks);
    for (int first = start; first < end; first += kGroupBlocks) {
        cta.template wait<kGroupStages - 2>();
        cta.show_to_wgmma();
        cta.sync();
        fetch(first + (kGroupStages - 1) * kGroupBlocks);
        const int last = first + kGroupBlocks < end ? first + kGroupBlocks : end;
        cta.warpgroups([&](auto& group) {
            for (int block = first; block < last; ++block) {
                group.each([&](int i) {
                    const int thread = 128 * group.index + i;
                    const GroupWeights w = next[thread];
                    next[thread] = load(thread, block + 1 < end ? block + 1 : block);
                    scales[thread] = w.scales;
#pragma unroll
                    for (int row = 0; row < 2; ++row)
#pragma unroll
                        for (int pair = 0; pair < 4; ++pair)
                            codes[thread].step[pair / 2].v[row + pair % 2 * 2] =
                                minus_136((w.words.v[row] >> (4 * pair) & 0x000f000fu) | 0x43004300u);
                });
                group.begin(acc);
#pragma unroll
                for (int plane = 0; plane < 2; ++plane)
#pragma unroll
                    for (int s = 0; s < 2; ++s)
                        group.mma(acc, codes, s, x, place(block) + (2 * plane + s) * 2 * kHalf, kHalf, plane + s > 0);
                group.commit();
                group.template wait<0>(acc);
                group.each([&](int i) {
                    const int thread = 128 * group.index + i;
                    const float low = float_of_half(scales[thread]), high = float_of_half(scales[thread] >> 16);
#pragma unroll
                    for (int r = 0; r < 64; ++r)
                        sums[thread].v[r] = fused(acc[thread].v[r], r & 2 ? high : low, sums[thread].v[r]);
                });
            }
        });
    }
    cta.each([&](int thread) {
        if (panel_of(thread) >= a.wide()) return;
        float* const out = a.out + static_cast<std::size_t>(cta.z()) * a.tokens * a.rows;
#pragma unroll
        for (int r = 0; r < 64; r += 4)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int token = cta.y() * kTileTokens + r / 4 * 8 + thread % 4 * 2 + c;
                if (token >= a.tokens) continue;
                float* const at =
                    out + static_cast<std::size_t>(token) * a.rows + panel_of(thread) * kPanelRows + row_of(thread);
                at[0] = sums[thread].v[r + c], at[1] = sums[thread].v[r + c + 2];
            }
    });
}

}  // namespace karat_gpu
