// The product that linear layers and attention share: a few rows of x times a strip of unpacked weights.
#pragma once

#include "simd/tuning.h"

namespace karat::KARAT_ISA_NAMESPACE {

// A tile is kTuning.tile_rows rows by kTuning.tile_vectors vectors of 16 outputs: as many accumulators as the registers
// hold.

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

// Cuts `tokens` rows into tiles of nearly equal height: how many there are, and the first row of tile i.
KARAT_INLINE std::size_t num_tiles(std::size_t tokens) { return (tokens + kTuning.tile_rows - 1) / kTuning.tile_rows; }
KARAT_INLINE std::size_t tile_start(std::size_t tokens, std::size_t i) { return i * tokens / num_tiles(tokens); }

// Calls f.run<height>(), for a height from Least to Most: with a constant height a tile keeps its accumulators in
// registers.
template <int Most = kTuning.tile_rows, int Least = 1, class F>
KARAT_INLINE void with_height(std::size_t height, const F& f) {
    if constexpr (Most > Least) {
        if (height < Most) return with_height<Most - 1, Least>(height, f);
    }
    f.template run<Most>();
}

// Makes each height of f a function of its own. A compiler's time grows faster than the size of a function, so tiles
// with much code are compiled apart. f is passed by value, so that the compiler may keep its members in registers.
template <class F>
struct NotInlined {
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
NotInlined(const F&) -> NotInlined<F>;

// Compiler barrier for memory: values that were stored before it are read again after it. Without this the compiler
// holds them in registers that the accumulators need.
KARAT_INLINE void forget_stored() { __asm__ volatile("" ::: "memory"); }

}  // namespace karat::KARAT_ISA_NAMESPACE
