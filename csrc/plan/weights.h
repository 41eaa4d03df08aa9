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

struct RopeTable {
    std::size_t positions, head_dim;
    std::vector<float> cos, sin;  // [positions, head_dim / 2]
};

struct Vector { std::vector<float> values; };

using MatrixRef = std::shared_ptr<const OwnedMatrix>;
using TableRef = std::variant<MatrixRef, std::shared_ptr<const StoredTable>>;
using VectorRef = std::shared_ptr<const Vector>;
using CacheRef = std::shared_ptr<const LayerCache>;
using RopeRef = std::shared_ptr<const RopeTable>;

}  // namespace karat
