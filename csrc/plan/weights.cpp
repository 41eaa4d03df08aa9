#include "plan/weights.h"

#include <utility>

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

OwnedState::OwnedState(std::size_t layers, std::size_t slots, std::vector<Shape> arrays)
    : num_layers(layers), num_slots(slots), shapes(std::move(arrays)), slot_floats(0) {
    require(layers > 0 && slots > 0 && slots <= kMaxCount && !shapes.empty(), "states without room");
    for (const Shape& shape : shapes) {
        require(!shape.empty(), "an array of a state without a shape");
        std::size_t floats = product({(shape.back() + 15) / 16, 16});
        for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) floats = product({floats, shape[axis]});
        require(floats > 0, "an empty array of a state");
        offsets.push_back(slot_floats);
        slot_floats += floats;
    }
    memory = Memory(product({layers, slots, slot_floats, sizeof(float)}));
}

}  // namespace karat
