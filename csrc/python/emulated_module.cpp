// The Python module karat._emulated: the kernels of a GPU in their emulation (gpu/simt.h), one method a launch or two.
//
// karat.ops.device, which alone calls it, has checked what the ops' contracts ask. Here is checked what memory needs:
// that arrays are as long as their numbers say.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/attention.h"
#include "gpu/experts.h"
#include "gpu/launches.h"
#include "gpu/panels.h"
#include "python/gil.h"

namespace nb = nanobind;

namespace karat {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

int size_of(const auto& array) { return static_cast<int>(array.size()); }

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

const float* data_or_null(const std::optional<In<float>>& array) { return array ? array->data() : nullptr; }

Format format_of(const std::string& name) {
    for (int i = 0; i < kNumFormats; ++i)
        if (name == kFormats[i].name) return static_cast<Format>(i);
    throw std::invalid_argument("no kernels for stored type '" + name + "'");
}

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A packed matrix on the device (contract/packed.h).
class DeviceMatrix {
public:
    // Rows begin row_bytes apart in `stored`; columns from first_byte on are taken. With an order, row i is stored row
    // order[i].
    DeviceMatrix(const std::string& stored_as, std::size_t rows, std::size_t columns, Bytes stored,
                 std::size_t row_bytes, std::size_t first_byte, std::optional<In<std::int64_t>> order)
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
        packed_.resize((matrix_.packed_bytes() + kPackedSlack) / sizeof(Piece) + 1);
        auto* const bytes = reinterpret_cast<std::uint8_t*>(packed_.data());
        matrix_.data = bytes;
        pack_panels(matrix_, {stored.data() + first_byte, row_bytes, order ? order->data() : nullptr}, 0,
                    matrix_.num_panels(), bytes);
    }
    DeviceMatrix(const DeviceMatrix&) = delete;

    const Matrix& matrix() const { return matrix_; }
    int rows() const { return static_cast<int>(matrix_.rows); }
    int columns() const { return static_cast<int>(matrix_.columns); }
    gpu::LinearShape shape(int tokens, float* out) const {
        return {matrix_.data, rows(), columns(), tokens, out, nullptr, nullptr, 1, {columns()}, {}};
    }
    std::size_t stored_bytes() const {
        return matrix_.rows * (matrix_.columns / matrix_.info().block_columns) * matrix_.info().block_bytes;
    }

private:
    struct alignas(64) Piece { std::uint8_t bytes[64]; };
    Matrix matrix_;
    std::vector<Piece> packed_;
};

struct DeviceCache {
    Out<std::uint8_t> data;  // [regions, bytes of a region], of all layers of the group
    CacheType type;
    int num_kv_heads, head_dim;
    std::size_t layer_at;  // byte of a region

    CacheView view() const {
        return {type, static_cast<std::size_t>(num_kv_heads), static_cast<std::size_t>(head_dim),
                data.data() + layer_at, data.shape(1)};
    }
    int num_slots() const { return static_cast<int>(data.shape(0) * kRegionSlots); }
};

class EmulatedDevice {
public:
    explicit EmulatedDevice(unsigned seed) : device_(seed) {}

    // Digits have room for `rows` rows.
    void quantise(int activations, In<float> x, Out<std::uint8_t> digits) {
        require(x.ndim() == 2 && activations >= 1 && activations <= 3 && x.shape(1) % kDigitColumns == 0, "x");
        require(digits.size() == x.size() / kDigitColumns * kDigitBlockBytes[activations], "digits");
        gpu::quantise(device_, static_cast<Activations>(activations), x.data(), static_cast<int>(x.shape(0)),
                      static_cast<int>(x.shape(1)), digits.data());
    }

    // `activations` is read for block formats only.
    void linear(const DeviceMatrix& matrix, In<float> x, int activations, const std::vector<int>& leaves,
                std::optional<In<float>> bias, std::optional<In<float>> residual, Out<float> out) {
        require(x.ndim() == 2 && x.shape(1) == matrix.matrix().columns, "x");
        require(out.size() == x.shape(0) * matrix.matrix().rows, "out");
        require(!bias || size_of(*bias) == matrix.rows(), "bias");
        require(!residual || residual->size() == out.size(), "residual");
        const auto count = leaves.size();
        require(count >= 1 && count <= kMaxLeaves && (count & (count - 1)) == 0 && leaves.back() == matrix.columns(),
                "leaves");
        gpu::LinearShape shape = matrix.shape(static_cast<int>(x.shape(0)), out.data());
        shape.bias = data_or_null(bias);
        shape.residual = data_or_null(residual);
        shape.num_leaves = static_cast<int>(count);
        const int step = static_cast<int>(matrix.matrix().info().block_columns);
        const Format format = matrix.matrix().format;
        for (std::size_t i = 0; i < count; ++i) {
            require(leaves[i] >= (i ? leaves[i - 1] : 0) && leaves[i] % step == 0, "leaves");
            shape.leaf_ends[i] = leaves[i];
        }
        require(activations >= 1 && activations <= 3, "activations");
        const GilReleased released;
        multiply(format, shape, x.data(), shape.tokens, activations);
    }

    void embedding(const DeviceMatrix& table, In<std::int32_t> ids, Out<float> out) {
        require(out.size() == ids.size() * table.matrix().columns, "out");
        require_below(ids, table.rows(), "ids");
        gpu::embedding(device_, table.matrix().format, table.shape(size_of(ids), out.data()), ids.data());
    }
    void select_rows(In<float> x, In<std::int32_t> rows, Out<float> out) {
        require(x.ndim() == 2 && out.size() == rows.size() * x.shape(1), "out");
        require_below(rows, static_cast<int>(x.shape(0)), "rows");
        gpu::select_rows(device_, x.data(), rows.data(), size_of(rows), static_cast<int>(x.shape(1)), out.data());
    }

    void rms_norm(In<float> x, In<float> weight, double eps, Out<float> out) {
        require(weight.size() > 0 && x.size() % weight.size() == 0 && out.size() == x.size(), "x");
        gpu::rms_norm(device_, x.data(), weight.data(), static_cast<float>(eps), size_of(x) / size_of(weight),
                      size_of(weight), out.data());
    }
    void silu_mul(In<float> gate, In<float> up, Out<float> out) {
        require(gate.size() == up.size() && out.size() == up.size(), "gate");
        gpu::silu_mul(device_, gate.data(), up.data(), size_of(up), out.data());
    }
    void sigmoid_mul(In<float> x, In<float> gate, Out<float> out) {
        require(gate.size() > 0 && x.size() % gate.size() == 0 && out.size() == x.size(), "gate");
        gpu::sigmoid_mul(device_, x.data(), gate.data(), size_of(x), size_of(x) / size_of(gate), out.data());
    }
    void add(In<float> x, In<float> y, Out<float> out) {
        require(x.size() == y.size() && out.size() == x.size(), "y");
        gpu::add(device_, x.data(), y.data(), size_of(x), out.data());
    }
    void scale(In<float> x, float factor, Out<float> out) {
        require(out.size() == x.size(), "out");
        gpu::scale(device_, x.data(), factor, size_of(x), out.data());
    }

    void rope(In<float> x, In<std::int32_t> positions, In<float> cos, In<float> sin, Out<float> out) {
        require(x.ndim() == 3 && x.shape(0) == positions.size() && out.size() == x.size(), "x");
        require(cos.ndim() == 2 && cos.size() == sin.size() && 2 * cos.shape(1) == x.shape(2), "cos");
        require_below(positions, static_cast<int>(cos.shape(0)), "positions");
        gpu::rope(device_, x.data(), positions.data(), cos.data(), sin.data(), static_cast<int>(x.shape(0)),
                  static_cast<int>(x.shape(1)), static_cast<int>(x.shape(2)), out.data());
    }

    void route(In<float> logits, bool renormalised, Out<std::int32_t> ids, Out<float> weights) {
        require(logits.ndim() == 2 && ids.ndim() == 2 && ids.shape(0) == logits.shape(0), "logits");
        require(ids.shape(1) >= 1 && ids.shape(1) <= logits.shape(1) && weights.size() == ids.size(), "ids");
        gpu::route(device_, logits.data(), static_cast<int>(logits.shape(0)), static_cast<int>(logits.shape(1)),
                   static_cast<int>(ids.shape(1)), renormalised, ids.data(), weights.data());
    }

    // Matrices of one role have one type and one shape; leaves are ends among them.
    void experts(In<float> x, In<std::int32_t> ids, In<float> weights, const std::vector<const DeviceMatrix*>& gates,
                 const std::vector<const DeviceMatrix*>& ups, const std::vector<const DeviceMatrix*>& downs, int first,
                 const std::vector<int>& leaves, int activations, Out<float> out) {
        const std::size_t count = gates.size(), inner = gates.empty() ? 0 : gates[0]->matrix().rows;
        require(x.ndim() == 2 && ids.ndim() == 2 && ids.shape(0) == x.shape(0) && weights.size() == ids.size(), "x");
        require(count > 0 && ups.size() == count && downs.size() == count && out.size() == x.size(), "experts");
        for (std::size_t i = 0; i < count; ++i) {
            for (const DeviceMatrix* into : {gates[i], ups[i]})
                require(into->matrix().rows == inner && into->matrix().columns == x.shape(1), "gates and ups");
            require(downs[i]->matrix().rows == x.shape(1) && downs[i]->matrix().columns == inner, "downs");
        }
        const std::size_t num_leaves = leaves.size();
        require(num_leaves >= 1 && num_leaves <= kMaxLeaves && (num_leaves & (num_leaves - 1)) == 0, "leaves");
        require(activations >= 1 && activations <= 3, "activations");
        const GilReleased released;
        const int rows = static_cast<int>(x.shape(0)), per_row = static_cast<int>(ids.shape(1)), pairs = rows * per_row;
        const auto of_pairs = [&](std::size_t n) { return std::vector<float>(n * ids.size(), __builtin_nanf("")); };
        std::vector<float> gate = of_pairs(inner), up = of_pairs(inner), down = of_pairs(x.shape(1));
        const auto product = [&](const std::vector<const DeviceMatrix*>& matrices, const float* from, int from_rows,
                                 int of_row, std::vector<float>& to) {
            std::vector<const std::uint8_t*> at;
            for (const DeviceMatrix* matrix : matrices) {
                require(matrix->matrix().format == matrices[0]->matrix().format, "experts of one type");
                at.push_back(matrix->matrix().data);
            }
            gpu::LinearShape shape = matrices[0]->shape(pairs, to.data());
            shape.chosen = {at.data(), ids.data(), first, static_cast<int>(count), of_row};
            multiply(matrices[0]->matrix().format, shape, from, from_rows, activations);
        };
        product(gates, x.data(), rows, per_row, gate);
        product(ups, x.data(), rows, per_row, up);
        gpu::silu_mul(device_, gate.data(), up.data(), static_cast<int>(gate.size()), gate.data());
        product(downs, gate.data(), pairs, 1, down);
        gpu::ExpertsShape shape{{nullptr, ids.data(), first, static_cast<int>(count), per_row},
                                rows,
                                static_cast<int>(x.shape(1)),
                                down.data(),
                                weights.data(),
                                static_cast<int>(num_leaves),
                                {},
                                out.data()};
        std::copy(leaves.begin(), leaves.end(), shape.leaf_ends);
        gpu::sum_of_experts(device_, shape);
    }

    // The index of the first number (over k, then v) that is finite and does not fit the cache's type, or -1.
    std::int32_t kv_write(In<float> k, In<float> v, const DeviceCache& cache, In<std::int32_t> slots) {
        const std::size_t row = static_cast<std::size_t>(cache.num_kv_heads) * static_cast<std::size_t>(cache.head_dim);
        require(k.size() == slots.size() * row && v.size() == k.size(), "k");
        require_below(slots, cache.num_slots(), "slots");
        return gpu::kv_write(device_, k.data(), v.data(), cache.view(), slots.data(), size_of(slots));
    }

    // `scores`, if there are any, are [heads, tokens of sequence score_seq, its context].
    void attention(In<float> q, const DeviceCache& cache, In<std::int32_t> positions, In<std::int32_t> query_starts,
                   In<std::int32_t> block_tables, int block_size, int group_heads, int first_head, float scale,
                   int window, std::optional<Out<float>> scores, int score_seq, Out<float> out) {
        require(q.ndim() == 3 && q.shape(0) == positions.size() && out.size() == q.size(), "q");
        require(q.shape(2) == static_cast<std::size_t>(cache.head_dim), "head_dim");
        require(block_tables.ndim() == 2 && query_starts.size() == block_tables.shape(0) + 1, "block_tables");
        require(!scores || scores->ndim() == 3, "scores");
        int last = 0;
        for (std::size_t i = 0; i < positions.size(); ++i) last = std::max(last, positions.data()[i]);
        gpu::AttentionShape shape{};
        shape.cache = cache.view();
        shape.num_tokens = size_of(positions);
        shape.num_seqs = static_cast<int>(block_tables.shape(0));
        shape.max_blocks = static_cast<int>(block_tables.shape(1));
        shape.block_size = block_size;
        shape.num_splits = last / static_cast<int>(kSplitKeys) + 1;
        shape.positions = positions.data();
        shape.query_starts = query_starts.data();
        shape.block_tables = block_tables.data();
        shape.q = q.data();
        shape.out = out.data();
        shape.num_heads = static_cast<int>(q.shape(1));
        shape.group_heads = group_heads;
        shape.first_head = first_head;
        shape.scale = scale;
        shape.window = window;
        if (scores) {
            shape.scores = scores->data();
            shape.score_seq = score_seq;
            shape.score_context = static_cast<int>(scores->shape(2));
        }
        const GilReleased released;
        const std::size_t rows = q.shape(0) * q.shape(1) * static_cast<std::size_t>(shape.num_splits);
        std::vector<float> parts(rows * (q.shape(2) + 2), __builtin_nanf(""));
        shape.parts = parts.data();
        gpu::attention(device_, shape);
    }

private:
    gpu::Device device_;

    // The layer of `shape`; x is of x_rows rows.
    void multiply(Format format, const gpu::LinearShape& shape, const float* x, int x_rows, int activations) {
        if (kFormats[static_cast<int>(format)].block_columns == 1) return gpu::float_linear(device_, format, shape, x);
        const auto width = static_cast<Activations>(activations);
        const std::size_t blocks = static_cast<std::size_t>(x_rows) * shape.columns / kDigitColumns;
        std::vector<gpu::U4> digits(blocks * kDigitBlockBytes[activations] / sizeof(gpu::U4));
        auto* const bytes = reinterpret_cast<std::uint8_t*>(digits.data());
        gpu::quantise(device_, width, x, x_rows, shape.columns, bytes);
        gpu::integer_linear(device_, format, width, shape, bytes, x_rows);
    }

    static void require_below(const In<std::int32_t>& numbers, int end, const char* what) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            require(numbers.data()[i] >= 0 && numbers.data()[i] < end, what);
    }
};

}  // namespace
}  // namespace karat

NB_MODULE(_emulated, m) {
    using namespace karat;
    using namespace nb::literals;

    nb::class_<DeviceMatrix>(m, "DeviceMatrix")
        .def(nb::init<const std::string&, std::size_t, std::size_t, Bytes, std::size_t, std::size_t,
                      std::optional<In<std::int64_t>>>(),
             "stored_as"_a, "rows"_a, "columns"_a, "stored"_a, "row_bytes"_a, "first_byte"_a, "order"_a.none())
        .def_prop_ro("format", [](const DeviceMatrix& self) { return std::string(self.matrix().info().name); })
        .def_prop_ro("rows", &DeviceMatrix::rows)
        .def_prop_ro("columns", &DeviceMatrix::columns)
        .def_prop_ro("stored_bytes", &DeviceMatrix::stored_bytes)
        .def(
            "read",
            [](const DeviceMatrix& self, Out<std::uint8_t> stored) {
                require(stored.size() == self.stored_bytes(), "stored");
                unpack(self.matrix(), stored.data());
            },
            "stored"_a);
    nb::class_<DeviceCache>(m, "DeviceCache")
        .def(
            "__init__",
            [](DeviceCache* self, Out<std::uint8_t> data, int type, int num_kv_heads, int head_dim,
               std::size_t layer_at) {
                require(type >= 0 && type <= 2 && data.ndim() == 2 && num_kv_heads > 0 && head_dim > 0, "a cache");
                new (self) DeviceCache{data, static_cast<CacheType>(type), num_kv_heads, head_dim, layer_at};
            },
            "data"_a, "stored_as"_a, "num_kv_heads"_a, "head_dim"_a, "layer_at"_a);

    using D = EmulatedDevice;
    nb::class_<D>(m, "Device")
        .def(nb::init<unsigned>(), "seed"_a)
        .def("quantise", &D::quantise, "activations"_a, "x"_a, "digits"_a)
        .def("linear", &D::linear, "matrix"_a, "x"_a, "activations"_a, "leaves"_a, "bias"_a.none(), "residual"_a.none(),
             "out"_a)
        .def("embedding", &D::embedding, "table"_a, "ids"_a, "out"_a)
        .def("select_rows", &D::select_rows, "x"_a, "rows"_a, "out"_a)
        .def("rms_norm", &D::rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a)
        .def("silu_mul", &D::silu_mul, "gate"_a, "up"_a, "out"_a)
        .def("sigmoid_mul", &D::sigmoid_mul, "x"_a, "gate"_a, "out"_a)
        .def("add", &D::add, "x"_a, "y"_a, "out"_a)
        .def("scale", &D::scale, "x"_a, "factor"_a, "out"_a)
        .def("rope", &D::rope, "x"_a, "positions"_a, "cos"_a, "sin"_a, "out"_a)
        .def("route", &D::route, "logits"_a, "renormalised"_a, "ids"_a, "weights"_a)
        .def("experts", &D::experts, "x"_a, "ids"_a, "weights"_a, "gates"_a, "ups"_a, "downs"_a, "first"_a, "leaves"_a,
             "activations"_a, "out"_a)
        .def("kv_write", &D::kv_write, "k"_a, "v"_a, "cache"_a, "slots"_a)
        .def("attention", &D::attention, "q"_a, "cache"_a, "positions"_a, "query_starts"_a, "block_tables"_a,
             "block_size"_a, "group_heads"_a, "first_head"_a, "scale"_a, "window"_a, "scores"_a.none(), "score_seq"_a,
             "out"_a);
}
