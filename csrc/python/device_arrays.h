// What the methods of a device take and give (device_api.h): arrays, packed matrices and caches in its memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/launches.h"
#include "gpu/shapes.h"
#include "python/formats.h"
#include "python/gil.h"

namespace nb = nanobind;

namespace karat {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Numbers = In<std::int32_t>;
using Lengths = std::vector<std::size_t>;
using Memory = std::shared_ptr<gpu::DeviceMemory>;

inline int narrow(std::size_t n) { return static_cast<int>(n); }

inline void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

inline std::size_t product(const Lengths& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

// Numbers of 32 bits in the memory of a device, from number `first` of this memory on. Views of them share it.
class Array {
public:
    Array(Memory memory, Lengths shape, bool is_float, std::size_t first = 0)
        : memory_(std::move(memory)), shape_(std::move(shape)), is_float_(is_float), first_(first) {}
    static Array empty(const std::shared_ptr<gpu::Device>& device, Lengths shape, bool is_float = true) {
        const std::size_t bytes = 4 * product(shape);
        return {std::make_shared<gpu::DeviceMemory>(device, bytes), std::move(shape), is_float};
    }

    const Lengths& shape() const { return shape_; }
    std::size_t ndim() const { return shape_.size(); }
    std::size_t shape(std::size_t axis) const { return shape_[axis]; }
    std::size_t size() const { return product(shape_); }
    bool is_float() const { return is_float_; }
    float* floats() const {
        require(is_float_, "an array of float32");
        return memory_->as<float>() + first_;
    }
    std::int32_t* integers() const {
        require(!is_float_, "an array of int32");
        return memory_->as<std::int32_t>() + first_;
    }
    std::size_t bytes() const { return 4 * size(); }
    void* data() const { return memory_->as<std::int32_t>() + first_; }
    gpu::Device& device() const { return memory_->device(); }

    Array reshape(const Lengths& shape) const {
        require(product(shape) == size(), "a shape of another size");
        return {memory_, shape, is_float_, first_};
    }
    // The numbers from `first` on.
    Array view(std::size_t first, const Lengths& shape) const {
        require(first <= size() && product(shape) <= size() - first, "a view of what an array has not");
        return {memory_, shape, is_float_, first_ + first};
    }
    // Where a download goes.
    template <class T>
    gpu::Copy to(const Out<T>& host) const {
        require(host.size() == size() && is_float_ == std::is_same_v<T, float>, "an array to read to");
        return {host.data(), data(), bytes()};
    }
    // Waits for all that was asked of the device.
    template <class T>
    void read(const Out<T>& host) const {
        const gpu::Copy copy = to(host);
        const GilReleased released;
        if (size()) gpu::download(device(), copy);
    }

private:
    Memory memory_;
    Lengths shape_;
    bool is_float_;
    std::size_t first_;
};

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A packed matrix on the device (contract/packed.h).
class DeviceMatrix {
public:
    // Rows begin row_bytes apart in `stored`; columns from first_byte on are taken. With an order, row i is stored row
    // order[i].
    DeviceMatrix(const std::shared_ptr<gpu::Device>& device, const std::string& stored_as, std::size_t rows,
                 std::size_t columns, Bytes stored, std::size_t row_bytes, std::size_t first_byte,
                 std::optional<In<std::int64_t>> order)
        : matrix_{format_of(stored_as), rows, columns, nullptr} {
        const FormatInfo& info = matrix_.info();
        const std::size_t own_bytes = columns / info.block_columns * info.block_bytes;
        if (row_bytes == 0) row_bytes = own_bytes;
        const std::size_t num_stored = row_bytes == 0 ? 0 : stored.size() / row_bytes;
        require(rows > 0 && columns > 0 && columns % info.block_columns == 0, "rows and columns of a matrix");
        require(own_bytes <= row_bytes && first_byte <= row_bytes - own_bytes && stored.size() % row_bytes == 0,
                "bytes of a matrix");
        require((order ? order->size() : num_stored) == rows, "rows of a matrix");
        for (std::size_t i = 0; order && i < rows; ++i)
            require(static_cast<std::size_t>(order->data()[i]) < num_stored, "the order of rows");
        memory_ = std::make_unique<gpu::DeviceMemory>(device, matrix_.packed_bytes() + kPackedSlack);
        matrix_.data = memory_->as<std::uint8_t>();
        const StoredRows all{stored.data() + first_byte, row_bytes, order ? order->data() : nullptr};
        const GilReleased released;
        pack(all);
    }
    DeviceMatrix(const DeviceMatrix&) = delete;

    const Matrix& matrix() const { return matrix_; }
    int rows() const { return narrow(matrix_.rows); }
    int columns() const { return narrow(matrix_.columns); }
    // As a layer of `tokens` rows of x, alone.
    gpu::LinearShape shape(int tokens, float* out) const {
        gpu::LinearShape made{};
        made.columns = made.leaf_ends[0] = columns();
        made.tokens = tokens;
        made.num_leaves = 1;
        made.add(layer(out, nullptr));
        return made;
    }
    gpu::Layer layer(float* out, const float* bias) const { return {matrix_.data, rows(), out, bias}; }
    std::size_t stored_bytes() const {
        return matrix_.rows * (matrix_.columns / matrix_.info().block_columns) * matrix_.info().block_bytes;
    }
    void read(Out<std::uint8_t> stored) const {
        require(stored.size() == stored_bytes(), "stored");
        Staging packed(matrix_.packed_bytes());
        gpu::download(memory_->device(), {packed.data(), matrix_.data, matrix_.packed_bytes()});
        Matrix here = matrix_;
        here.data = packed.data();
        unpack(here, stored.data());
    }

private:
    static constexpr std::size_t kStagedBytes = std::size_t{64} << 20;

    // Memory of the host as packed matrices ask for it.
    class Staging {
    public:
        explicit Staging(std::size_t bytes) : pieces_((bytes + kPackedSlack) / sizeof(Piece) + 1) {}
        std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(pieces_.data()); }

    private:
        struct alignas(64) Piece { std::uint8_t bytes[64]; };
        std::vector<Piece> pieces_;
    };

    // Some wide panels at a time, which are a matrix of their own: the host holds no more of it.
    void pack(const StoredRows& all) {
        constexpr std::size_t kWideRows = 4 * kGroupRows;
        const std::size_t wide_bytes = 4 * matrix_.group_bytes();
        const std::size_t at_once = std::max<std::size_t>(1, kStagedBytes / wide_bytes) * kWideRows;
        Matrix part = matrix_;
        part.rows = std::min(matrix_.rows, at_once);
        Staging staging(part.packed_bytes());
        for (std::size_t row = 0; row < matrix_.rows; row += at_once) {
            part.rows = std::min(matrix_.rows - row, at_once);
            const StoredRows rows{all.order ? all.data : all.data + row * all.stride, all.stride,
                                  all.order ? all.order + row : nullptr};
            pack_panels(part, rows, 0, part.num_panels(), staging.data());
            gpu::upload(memory_->device(), {memory_->as<std::uint8_t>() + row / kGroupRows * matrix_.group_bytes(),
                                            staging.data(), part.packed_bytes()});
        }
    }

    Matrix matrix_;
    std::unique_ptr<gpu::DeviceMemory> memory_;
};

// The memory of all layers of a cache group: it begins as NaN in every type.
struct CacheMemory {
    Memory memory;
    std::size_t regions, region_bytes;

    CacheMemory(const std::shared_ptr<gpu::Device>& device, std::size_t regions, std::size_t region_bytes)
        : memory(std::make_shared<gpu::DeviceMemory>(device, regions * region_bytes)), regions(regions),
          region_bytes(region_bytes) {
        gpu::fill(*device, memory->as<void>(), 0xff, regions * region_bytes);
    }
};

struct DeviceCache {
    CacheMemory memory;
    CacheType type;
    int num_kv_heads, head_dim;
    std::size_t layer_at;  // byte of a region

    CacheView view() const {
        return {type, static_cast<std::size_t>(num_kv_heads), static_cast<std::size_t>(head_dim),
                memory.memory->as<std::uint8_t>() + layer_at, memory.region_bytes};
    }
    std::size_t row() const { return static_cast<std::size_t>(num_kv_heads) * static_cast<std::size_t>(head_dim); }
    int num_slots() const { return narrow(memory.regions * kRegionSlots); }
};

// Layers that the rows of a step choose among, of one type and one shape: where each lies.
class MatrixTable {
public:
    MatrixTable(const std::shared_ptr<gpu::Device>& device, const std::vector<const DeviceMatrix*>& matrices)
        : first_(matrices.empty() ? nullptr : matrices[0]), count_(narrow(matrices.size())),
          memory_(device, matrices.size() * sizeof(std::uint8_t*)) {
        require(first_ != nullptr, "matrices");
        std::vector<const std::uint8_t*> at;
        for (const DeviceMatrix* each : matrices) {
            const Matrix &one = first_->matrix(), &other = each->matrix();
            require(one.format == other.format && one.rows == other.rows && one.columns == other.columns,
                    "matrices of one type and shape");
            at.push_back(other.data);
        }
        gpu::upload(*device, {memory_.as<void>(), at.data(), memory_.bytes()});
    }

    const DeviceMatrix& first() const { return *first_; }
    int count() const { return count_; }
    const std::uint8_t* const* places() const { return memory_.as<const std::uint8_t*>(); }

private:
    const DeviceMatrix* first_;  // what made this keeps the matrices
    int count_;
    gpu::DeviceMemory memory_;
};

// Launches to be asked for again. It keeps its device.
class Recorded {
public:
    Recorded(std::shared_ptr<gpu::Device> device, std::unique_ptr<gpu::Recording> recording)
        : device_(std::move(device)), recording_(std::move(recording)) {}
    void replay() {
        const GilReleased released;
        recording_->replay();
    }

private:
    std::shared_ptr<gpu::Device> device_;
    std::unique_ptr<gpu::Recording> recording_;
};

}  // namespace karat
