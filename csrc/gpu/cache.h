// A layer of a paged KV cache (the picture is in contract/kernels.h, CacheView), and writing K and V to it.
#pragma once

#include <type_traits>

#include "contract/kernels.h"
#include "formats/formats.h"
#include "gpu/simt.h"
#include "simd/narrow.h"

namespace karat::gpu {

template <class Fmt>
using StoredAs = std::conditional_t<Fmt::kBytes == 4, float, std::uint16_t>;

// One KV head. Fmt is F32, F16 or BF16.
template <class Fmt>
struct CachedHead {
    using Stored = StoredAs<Fmt>;
    static constexpr std::size_t kGroup = 16;
    std::uint8_t* data;
    std::size_t region_bytes, dim;

    KARAT_INLINE CachedHead(const CacheView& cache, int head)
        : data(cache.data + static_cast<std::size_t>(head) * kRegionSlots * (cache.head_dim + padded(cache.head_dim)) *
                                sizeof(Stored)),
          region_bytes(cache.region_bytes), dim(cache.head_dim) {}

    static KARAT_INLINE std::size_t padded(std::size_t dim) { return (dim + kGroup - 1) / kGroup * kGroup; }

    // Dimension 0 of a slot's K; the next one is kGroup numbers on.
    KARAT_INLINE Stored* k(std::size_t slot) const {
        return region(slot) + slot % kRegionSlots / kGroup * kGroup * dim + slot % kGroup;
    }
    KARAT_INLINE Stored* v(std::size_t slot) const {
        return region(slot) + kRegionSlots * dim + slot % kRegionSlots * padded(dim);
    }
    static KARAT_INLINE float read(const Stored* p) { return Fmt::read(reinterpret_cast<const std::uint8_t*>(p)).v; }

private:
    KARAT_INLINE Stored* region(std::size_t slot) const {
        return reinterpret_cast<Stored*>(data + slot / kRegionSlots * region_bytes);
    }
};

// Stores k and v [tokens, kv_heads, head_dim] at the slots, a thread a number. *lost becomes the least index (over k,
// then v) of a number that is finite and becomes infinite.
template <class Fmt>
struct KvWrite {
    static constexpr int kThreads = 128;
    const float *k, *v;
    CacheView cache;
    const std::int32_t* slots;
    int tokens;
    std::int32_t* lost;

    KARAT_HOST KARAT_INLINE int count() const { return tokens * static_cast<int>(cache.num_kv_heads * cache.head_dim); }
    Grid grid() const { return {pieces(count(), kThreads), 2, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            const int i = cta.x() * kThreads + thread, dim = static_cast<int>(cache.head_dim);
            if (i >= count()) return;
            const int heads = static_cast<int>(cache.num_kv_heads), d = i % dim, head = i / dim % heads;
            const auto slot = static_cast<std::size_t>(slots[i / dim / heads]);
            const CachedHead<Fmt> to(cache, head);
            const bool is_k = cta.y() == 0;
            const float value = value_at<float>((is_k ? k : v) + i);
            const auto stored = narrow(value);
            *(is_k ? to.k(slot) + d * static_cast<int>(CachedHead<Fmt>::kGroup) : to.v(slot) + d) = stored;
            if ((bits_of(CachedHead<Fmt>::read(&stored)) & 0x7fffffff) == 0x7f800000 &&
                (bits_of(value) & 0x7f800000) != 0x7f800000)
                cta.least(lost, cta.y() * count() + i);
        });
    }

private:
    static KARAT_INLINE StoredAs<Fmt> narrow(float value) {
        if constexpr (std::is_same_v<Fmt, F16>) return f16_of(value);
        else if constexpr (std::is_same_v<Fmt, BF16>) return bf16_of(value);
        else return value;
    }
};

}  // namespace karat::gpu
