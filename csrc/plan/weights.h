// What ops read beside registers: matrices, vectors, rotary tables, caches.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "contract/kernels.h"
#include "runtime/memory.h"

namespace karat {

// Packed into memory of its own, or as it lies in a mapped file, which `file` keeps.
struct OwnedMatrix {
    Matrix matrix;
    Memory memory;
    std::shared_ptr<void> file;
};

// A table of which rows are only gathered, as it lies in a mapped file, which `file` keeps.
struct StoredTable {
    Matrix shape;  // without packed bytes
    StoredRows rows;
    std::shared_ptr<void> file;
};

struct OwnedCache {
    CacheType type;
    std::size_t num_layers, num_slots, num_kv_heads, head_dim;
    std::size_t layer_bytes;  // of a region
    Memory memory;

    OwnedCache(CacheType type, std::size_t layers, std::size_t slots, std::size_t kv_heads, std::size_t head_dim);
    CacheView layer(std::size_t index) const;
};

// The cache of one layer. It is addressed by the slots and block tables of its cache group.
struct LayerCache {
    std::shared_ptr<const OwnedCache> owner;  // of all layers of the group
    std::size_t place;                        // among them
    std::size_t group, layer;                 // their numbers in the model

    CacheView view() const { return owner->layer(place); }
};

// The arrays that layers keep for each sequence, float32. A slot of a layer has one array after the other; the last
// axis of each is rounded up to 16 numbers. Nothing is written before a step does.
struct OwnedState {
    using Shape = std::vector<std::size_t>;

    std::size_t num_layers, num_slots;
    std::vector<Shape> shapes;
    std::vector<std::size_t> offsets;  // of the arrays in a slot, in floats
    std::size_t slot_floats;
    Memory memory;

    OwnedState(std::size_t layers, std::size_t slots, std::vector<Shape> shapes);
};

// The state of one layer. A step's state_reads and state_writes are its slots.
struct LayerState {
    std::shared_ptr<const OwnedState> owner;
    std::size_t place;  // among its layers

    bool has(std::size_t array, const OwnedState::Shape& shape) const {
        return array < owner->shapes.size() && owner->shapes[array] == shape;
    }
    float* data(std::size_t array, std::int32_t slot) const {
        return owner->memory.floats() +
               (place * owner->num_slots + static_cast<std::size_t>(slot)) * owner->slot_floats + owner->offsets[array];
    }
};

struct RopeTable {
    std::size_t positions, head_dim;
    std::vector<float> cos, sin;  // [positions, head_dim / 2]
};

struct Vector { std::vector<float> values; };

using MatrixRef = std::shared_ptr<const OwnedMatrix>;
using TableRef = std::variant<MatrixRef, std::shared_ptr<const StoredTable>>;
using VectorRef = std::shared_ptr<const Vector>;
using CacheRef = std::shared_ptr<const LayerCache>;
using StateRef = std::shared_ptr<const LayerState>;
using RopeRef = std::shared_ptr<const RopeTable>;

}  // namespace karat
