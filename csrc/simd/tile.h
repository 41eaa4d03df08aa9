// The multiplication that linear layers and attention share: a few rows of x by a strip of unpacked weights.
#pragma once

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

// A tile is kTileTokens rows by kTileGroups groups of 16 outputs: as many accumulators as the registers hold.
inline constexpr int kTileTokens = 6;
#if defined(KARAT_AVX512)
inline constexpr int kTileGroups = 4;
#else
inline constexpr int kTileGroups = 1;
#endif

// Up to so many rows (by so many groups) it is as well to read stored weights straight into the chain; attention of one
// token takes its rows in passes of so many. 1: not here.
#if defined(KARAT_AVX512)
inline constexpr int kDirectTokens = 8;
inline constexpr int kDirectGroups = 2;
#elif defined(KARAT_AVX2)
inline constexpr int kDirectTokens = kTileTokens;
inline constexpr int kDirectGroups = kTileGroups;
#else
inline constexpr int kDirectTokens = 1;
inline constexpr int kDirectGroups = 1;
#endif

// acc[t][g] = chain of fma(w[k, 16 g …], x[t, k], acc[t][g]) over k = 0 … count - 1; rows of w are w_stride floats
// apart.
template <int T, int G>
KARAT_INLINE void chain(f32x16 (&acc)[T][G], const float* w, std::size_t w_stride, const float* x, std::size_t x_stride,
                        std::size_t count) {
    for (std::size_t k = 0; k < count; ++k, w += w_stride) {
        f32x16 weight[G];
        for (int g = 0; g < G; ++g) weight[g] = load(w + kLanes * g);
        for (int t = 0; t < T; ++t) {
            const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * x_stride + k);
            for (int g = 0; g < G; ++g) acc[t][g] = fma(weight[g], value, acc[t][g]);
        }
    }
}

// The number of tiles for `tokens` rows, and the rows of tile i: as even as possible.
KARAT_INLINE std::size_t num_tiles(std::size_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }
KARAT_INLINE std::size_t tile_start(std::size_t tokens, std::size_t i) { return i * tokens / num_tiles(tokens); }

// Calls f with T (Least … Most) as a constant, so that a tile of any height keeps its accumulators in registers.
template <int Most = kTileTokens, int Least = 1, class F>
KARAT_INLINE void with_height(std::size_t height, const F& f) {
    if constexpr (Most > Least) {
        if (height < Most) return with_height<Most - 1, Least>(height, f);
    }
    f.template run<Most>();
}

// The same for tiles of much code, whose heights are functions of their own: a compiler's time grows faster than a
// function. f by value, so that its members are those of the function.
template <class F>
struct Apart {
    const F& f;
    template <int T>
    KARAT_INLINE void run() const {
        call<T>(f);
    }

private:
    template <int T>
    static KARAT_NOINLINE void call(const F f) {
        f.template run<T>();
    }
};
template <class F>
Apart(const F&) -> Apart<F>;

// Keeps the compiler from holding what was stored in registers that the accumulators need.
KARAT_INLINE void settle() { __asm__ volatile("" ::: "memory"); }

}  // namespace karat::KARAT_ISA_NAMESPACE
