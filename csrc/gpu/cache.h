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

// Stores K or V [tokens, kv_heads, head_dim] at the slots, an item a number. A number that is finite and becomes
// infinite is lost: *lost becomes the least (its index in both, K before V) * 2^32 + its bits.
template <class Fmt, bool kIsValue>
struct Store {
    const float* from;
    CacheView cache;
    const std::int32_t* slots;
    int count;  // of the numbers of K, as of V
    std::uint64_t* lost;

    KARAT_INLINE void operator()(int i) const { put(i, value_at<float>(from + i)); }
    KARAT_INLINE void put(int i, float value) const {
        const int dim = static_cast<int>(cache.head_dim), heads = static_cast<int>(cache.num_kv_heads);
        const int d = i % dim, head = i / dim % heads;
        const auto slot = static_cast<std::size_t>(slots[i / dim / heads]);
        const CachedHead<Fmt> to(cache, head);
        const auto stored = narrow(value);
        if constexpr (kIsValue) to.v(slot)[d] = stored;
        else to.k(slot)[d * static_cast<int>(CachedHead<Fmt>::kGroup)] = stored;
        if ((bits_of(CachedHead<Fmt>::read(&stored)) & 0x7fffffff) == 0x7f800000 &&
            (bits_of(value) & 0x7f800000) != 0x7f800000)
            keep_least(lost, static_cast<std::uint64_t>(kIsValue ? count + i : i) << 32 | bits_of(value));
    }

private:
    static KARAT_INLINE StoredAs<Fmt> narrow(float value) {
        if constexpr (std::is_same_v<Fmt, F16>) return f16_of(value);
        else if constexpr (std::is_same_v<Fmt, BF16>) return bf16_of(value);
        else return value;
    }
};

}  // namespace karat::gpu
