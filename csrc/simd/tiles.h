// Intel's tiles (AMX): eight registers of 16 rows of 64 bytes, and products of bf16 tiles.
//
// Own assembly: gcc 12's _tile_loadconfig reads 8 of 64 bytes, for all it knows, and its _tile_loadd no memory. No
// compiler knows these registers: nothing saves them, so kernels call nothing that has tiles of its own while theirs
// are in use. Tiles belong to a thread, and the system saves them with its other registers.
//
// With KARAT_TILES_BY_LOOPS the same operations are loops, for machines without tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Tiles 0 … 3: sums, 16 x 16 floats. The others: x, of 16 tokens with `columns` numbers each, or codes, of as many
// columns; which of them hold which is the caller's choice (kFirstOfCodes).
//
//     x, tile       row t: columns 0 … columns - 1 of token t, 2 bytes each
//     codes, tile   row k: columns 2 k and 2 k + 1 of 16 rows of the matrix, 4 bytes for each row
template <int kColumns, int kFirstOfCodes>
class Tiles {
public:
    static constexpr int kTileRows = 16, kXBytes = 2 * kColumns;
    static constexpr std::size_t kSumBytes = 16 * 64, kCodeBytes = kColumns / 2 * 64;

#if defined(KARAT_TILES_BY_LOOPS)
    KARAT_INLINE Tiles() {}
    KARAT_INLINE void release() {}
    Tiles(const Tiles&) = delete;

    template <int T>
    KARAT_INLINE void zero() {
        std::memset(bytes_[T], 0, kSumBytes);
    }
    template <int T>
    KARAT_INLINE void load_codes(const std::uint8_t* p) {
        std::memcpy(bytes_[T], p, kCodeBytes);
    }
    template <int T>
    KARAT_INLINE void load_x(const std::uint8_t* p) {
        for (int t = 0; t < kTileRows; ++t) std::memcpy(bytes_[T] + 64 * t, p + 64 * t, kXBytes);
    }
    template <int T>
    KARAT_INLINE void store(float* p) const {
        std::memcpy(p, bytes_[T], kSumBytes);
    }
    template <int T, int X, int C>
    KARAT_INLINE void multiply() {
        for (int t = 0; t < kTileRows; ++t)
            for (int k = 0; k < kColumns; ++k) {
                const float x = number(bytes_[X] + 64 * t + 2 * k);
                float sum[kLanes];
                std::memcpy(sum, bytes_[T] + 64 * t, sizeof sum);
                for (int row = 0; row < kLanes; ++row)
                    sum[row] += x * number(bytes_[C] + 64 * (k / 2) + 4 * row + 2 * (k % 2));
                std::memcpy(bytes_[T] + 64 * t, sum, sizeof sum);
            }
    }

private:
    static KARAT_INLINE float number(const std::uint8_t* half) {
        std::uint16_t bits;
        std::memcpy(&bits, half, sizeof bits);
        return float_of(static_cast<std::uint32_t>(bits) << 16);
    }
    std::uint8_t bytes_[8][kSumBytes];
#else
    KARAT_INLINE Tiles() {
        const struct alignas(64) {
            std::uint8_t palette = 1, start = 0, reserved[14] = {};
            std::uint16_t row_bytes[16] = {};
            std::uint8_t rows[16] = {};
        } none;
        auto shapes = none;
        for (int i = 0; i < 8; ++i) {
            const bool is_x = i >= 4 && i < kFirstOfCodes;
            shapes.rows[i] = i < kFirstOfCodes ? kTileRows : kColumns / 2;
            shapes.row_bytes[i] = is_x ? kXBytes : 64;
        }
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    // At the end of use: tiles that are not released are saved at every switch of threads. No destructor, because code
    // for exceptions would come with it.
    KARAT_INLINE void release() { __asm__ volatile("tilerelease"); }
    Tiles(const Tiles&) = delete;

    template <int T>
    KARAT_INLINE void zero() {
        __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    template <int T>
    KARAT_INLINE void load_codes(const std::uint8_t* p) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(64L), "i"(T) : "memory");
    }
    // Past the nearest cache: what is there is read again sooner.
    template <int T>
    KARAT_INLINE void load_x(const std::uint8_t* p) {
        __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(64L), "i"(T) : "memory");
    }
    template <int T>
    KARAT_INLINE void store(float* p) const {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(64L), "i"(T) : "memory");
    }
    // T += X * C. All sums here are integers times a power of two, exact in float32, in any order.
    template <int T, int X, int C>
    KARAT_INLINE void multiply() {
        __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(T), "i"(X), "i"(C));
    }
#endif
};

}  // namespace karat::KARAT_ISA_NAMESPACE
