// Addresses of K and V of one KV head in a layer of a paged cache (the picture is in kernels.h, CacheView).
#pragma once

#include "kernels/kernels_isa.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

template <class Stored>
class CachedHead {
public:
    KARAT_INLINE CachedHead(const CacheView& cache, std::size_t kv_head)
        : dim_(cache.head_dim), padded_((dim_ + kLanes - 1) / kLanes * kLanes), region_bytes_(cache.region_bytes),
          data_(cache.data + kv_head * kRegionSlots * (dim_ + padded_) * sizeof(Stored)) {}

    // K of the sixteen slots that `slot` lies among: [head_dim, 16].
    KARAT_INLINE Stored* k(std::size_t slot) const {
        return region(slot) + slot % kRegionSlots / kLanes * kLanes * dim_;
    }
    // V of a slot: [head_dim rounded up to 16].
    KARAT_INLINE Stored* v(std::size_t slot) const {
        return region(slot) + kRegionSlots * dim_ + slot % kRegionSlots * padded_;
    }

private:
    KARAT_INLINE Stored* region(std::size_t slot) const {
        return reinterpret_cast<Stored*>(data_ + slot / kRegionSlots * region_bytes_);
    }
    std::size_t dim_, padded_, region_bytes_;
    std::uint8_t* data_;
};

}  // namespace karat::KARAT_ISA_NAMESPACE
