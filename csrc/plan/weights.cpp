#include "plan/weights.h"

#include "plan/require.h"

namespace karat {

OwnedCache::OwnedCache(CacheType type, std::size_t layers, std::size_t slots, std::size_t kv_heads,
                       std::size_t head_dim)
    : type(type), num_layers(layers), num_slots(slots), num_kv_heads(kv_heads), head_dim(head_dim) {
    const std::size_t item = type == CacheType::f32 ? 4 : 2, padded = (head_dim + 15) / 16 * 16;
    require(layers > 0 && slots > 0 && slots <= kMaxCount && kv_heads > 0 && head_dim > 0, "a cache without room");
    (void)product({kRegionSlots, kv_heads, 2, padded, item});  // K takes no more than V
    layer_bytes = kRegionSlots * kv_heads * (head_dim + padded) * item;
    memory = Memory(product({(slots + kRegionSlots - 1) / kRegionSlots, layers, layer_bytes}));
}

CacheView OwnedCache::layer(std::size_t index) const {
    return {type, num_kv_heads, head_dim, memory.bytes() + index * layer_bytes, num_layers * layer_bytes};
}

}  // namespace karat
