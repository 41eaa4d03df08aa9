// The Python modules karat._emulated and karat_cuda._cuda: a device (gpu/device.h), arrays in its memory, and the
// kernels of a GPU, one method a launch or a few.
//
// karat.ops.device, which alone calls it, has checked what the ops' contracts ask. Here is checked what memory needs:
// that arrays are as long as their numbers say. The columns of a step come from the host.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/device_arrays.h"

namespace karat {
namespace {

class DeviceApi {
public:
    explicit DeviceApi(unsigned number) : handle_(gpu::open_device(number)), device_(*handle_), lost_(handle_, 4) {}

    const std::shared_ptr<gpu::Device>& handle() const { return handle_; }
    std::string name() const { return gpu::name_of(device_); }
    std::size_t free_bytes() { return gpu::free_bytes(device_); }

    template <class T>
    Array array(In<T> from) {
        Array made = empty(Lengths(from.shape_ptr(), from.shape_ptr() + from.ndim()), std::is_same_v<T, float>);
        if constexpr (std::is_same_v<T, float>) copy(made.floats(), from);
        else copy(made.integers(), from);
        return made;
    }

    // `activations` is read for block formats only.
    Array linear(const DeviceMatrix& matrix, const Array& x, int activations, const std::vector<int>& leaves,
                 const Array* bias, const Array* residual) {
        require(x.ndim() == 2 && x.shape(1) == matrix.matrix().columns, "x");
        require(activations >= 1 && activations <= 3, "activations");
        Array out = empty({x.shape(0), matrix.matrix().rows});
        require(!bias || bias->size() == matrix.matrix().rows, "bias");
        require(!residual || residual->size() == out.size(), "residual");
        require_leaves(leaves);
        require(leaves.back() == matrix.columns(), "leaves");
        gpu::LinearShape shape = matrix.shape(narrow(x.shape(0)), out.floats());
        shape.bias = bias ? bias->floats() : nullptr;
        shape.residual = residual ? residual->floats() : nullptr;
        shape.num_leaves = narrow(leaves.size());
        for (std::size_t i = 0; i < leaves.size(); ++i) {
            require(leaves[i] % narrow(matrix.matrix().info().block_columns) == 0, "leaves");
            shape.leaf_ends[i] = leaves[i];
        }
        const float* const from = x.floats();
        const GilReleased released;
        multiply(matrix.matrix(), shape, from, shape.tokens, activations);
        return out;
    }

    Array embedding(const DeviceMatrix& table, Numbers ids) {
        require_below(ids, table.rows(), "ids");
        Array out = empty({ids.size(), table.matrix().columns});
        const Column<std::int32_t> at(*this, ids);
        gpu::embedding(device_, table.matrix().format, table.shape(narrow(ids.size()), out.floats()), at);
        return out;
    }
    Array select_rows(const Array& x, Numbers rows) {
        require(x.ndim() == 2, "x");
        require_below(rows, narrow(x.shape(0)), "rows");
        Array out = empty({rows.size(), x.shape(1)});
        const Column<std::int32_t> at(*this, rows);
        gpu::select_rows(device_, x.floats(), at, narrow(rows.size()), narrow(x.shape(1)), out.floats());
        return out;
    }

    Array rms_norm(const Array& x, const Array& weight, double eps) {
        require(weight.size() > 0 && x.size() % weight.size() == 0, "x");
        Array out = like(x);
        gpu::rms_norm(device_, x.floats(), weight.floats(), static_cast<float>(eps), narrow(x.size() / weight.size()),
                      narrow(weight.size()), out.floats());
        return out;
    }
    Array silu_mul(const Array& gate, const Array& up) {
        require(gate.size() == up.size(), "gate");
        Array out = like(up);
        gpu::silu_mul(device_, gate.floats(), up.floats(), narrow(up.size()), out.floats());
        return out;
    }
    Array sigmoid_mul(const Array& x, const Array& gate) {
        require(gate.size() > 0 && x.size() % gate.size() == 0, "gate");
        Array out = like(x);
        gpu::sigmoid_mul(device_, x.floats(), gate.floats(), narrow(x.size()), narrow(x.size() / gate.size()),
                         out.floats());
        return out;
    }
    Array add(const Array& x, const Array& y) {
        require(x.size() == y.size(), "y");
        Array out = like(x);
        gpu::add(device_, x.floats(), y.floats(), narrow(x.size()), out.floats());
        return out;
    }
    Array scale(const Array& x, float factor) {
        Array out = like(x);
        gpu::scale(device_, x.floats(), factor, narrow(x.size()), out.floats());
        return out;
    }

    Array rope(const Array& x, Numbers positions, const Array& cos, const Array& sin) {
        require(x.ndim() == 3 && x.shape(0) == positions.size(), "x");
        require(cos.ndim() == 2 && cos.size() == sin.size() && 2 * cos.shape(1) == x.shape(2), "cos");
        require_below(positions, narrow(cos.shape(0)), "positions");
        Array out = like(x);
        const Column<std::int32_t> at(*this, positions);
        gpu::rope(device_, x.floats(), at, cos.floats(), sin.floats(), narrow(x.shape(0)), narrow(x.shape(1)),
                  narrow(x.shape(2)), out.floats());
        return out;
    }

    // Ids and weights, each [rows, chosen].
    std::pair<Array, Array> route(const Array& logits, std::size_t chosen, bool renormalised) {
        require(logits.ndim() == 2 && chosen >= 1 && chosen <= logits.shape(1), "logits");
        const Lengths shape{logits.shape(0), chosen};
        std::pair<Array, Array> made{empty(shape, false), empty(shape)};
        gpu::route(device_, logits.floats(), narrow(logits.shape(0)), narrow(logits.shape(1)), narrow(chosen),
                   renormalised, made.first.integers(), made.second.floats());
        return made;
    }

    // Matrices of one role have one type and one shape; leaves are ends among them.
    using Matrices = std::vector<const DeviceMatrix*>;
    Array experts(const Array& x, const Array& ids, const Array& weights, const Matrices& gates, const Matrices& ups,
                  const Matrices& downs, int first, const std::vector<int>& leaves, int activations) {
        const std::size_t count = gates.size(), inner = gates.empty() ? 0 : gates[0]->matrix().rows;
        require(x.ndim() == 2 && ids.ndim() == 2 && ids.shape(0) == x.shape(0) && weights.size() == ids.size(), "x");
        require(count > 0 && ups.size() == count && downs.size() == count, "experts");
        for (std::size_t i = 0; i < count; ++i) {
            for (const DeviceMatrix* into : {gates[i], ups[i]})
                require(into->matrix().rows == inner && into->matrix().columns == x.shape(1), "gates and ups");
            require(downs[i]->matrix().rows == x.shape(1) && downs[i]->matrix().columns == inner, "downs");
        }
        require_leaves(leaves);
        require(activations >= 1 && activations <= 3, "activations");
        const int rows = narrow(x.shape(0)), per_row = narrow(ids.shape(1)), pairs = rows * per_row;
        const Array gate = empty({ids.size(), inner}), up = empty({ids.size(), inner});
        const Array down = empty({ids.size(), x.shape(1)}), out = like(x);
        const auto multiplied = [&](const Matrices& matrices, const Array& from, int from_rows, int of_row,
                                    const Array& to) {
            std::vector<std::int64_t> at;
            for (const DeviceMatrix* matrix : matrices) {
                require(matrix->matrix().format == matrices[0]->matrix().format, "experts of one type");
                at.push_back(reinterpret_cast<std::int64_t>(matrix->matrix().data));
            }
            const gpu::DeviceMemory table(handle_, at.size() * sizeof at[0]);
            gpu::upload(device_, table.as<void>(), at.data(), table.bytes());
            gpu::LinearShape shape = matrices[0]->shape(pairs, to.floats());
            shape.chosen = {table.as<const std::uint8_t*>(), ids.integers(), first, narrow(count), of_row};
            multiply(matrices[0]->matrix(), shape, from.floats(), from_rows, activations);
        };
        multiplied(gates, x, rows, per_row, gate);
        multiplied(ups, x, rows, per_row, up);
        gpu::silu_mul(device_, gate.floats(), up.floats(), narrow(gate.size()), gate.floats());
        multiplied(downs, gate, pairs, 1, down);
        gpu::ExpertsShape shape{{nullptr, ids.integers(), first, narrow(count), per_row},
                                rows,
                                narrow(x.shape(1)),
                                down.floats(),
                                weights.floats(),
                                narrow(leaves.size()),
                                {},
                                out.floats()};
        std::copy(leaves.begin(), leaves.end(), shape.leaf_ends);
        gpu::sum_of_experts(device_, shape);
        return out;
    }

    // The index of the first number (over k, then v) that is finite and does not fit the cache's type, or -1.
    std::int32_t kv_write(const Array& k, const Array& v, const DeviceCache& cache, Numbers slots) {
        const std::size_t row = static_cast<std::size_t>(cache.num_kv_heads) * static_cast<std::size_t>(cache.head_dim);
        require(k.size() == slots.size() * row && v.size() == k.size(), "k");
        require_below(slots, cache.num_slots(), "slots");
        constexpr std::int32_t kNone = 0x7fffffff;
        std::int32_t lost = kNone;
        gpu::upload(device_, lost_.as<void>(), &lost, sizeof lost);
        const Column<std::int32_t> at(*this, slots);
        gpu::kv_write(device_, k.floats(), v.floats(), cache.view(), at, narrow(slots.size()),
                      lost_.as<std::int32_t>());
        gpu::download(device_, &lost, lost_.as<void>(), sizeof lost);
        return lost == kNone ? -1 : lost;
    }

    // [tokens, heads, head_dim]. `scores`, if there are any, are [heads, tokens of sequence score_seq, its context]:
    // those of visible keys are written.
    Array attention(const Array& q, const DeviceCache& cache, Numbers positions, Numbers query_starts,
                    Numbers block_tables, int block_size, int group_heads, int first_head, float scale, int window,
                    std::optional<Out<float>> scores, int score_seq) {
        require(q.ndim() == 3 && q.shape(0) == positions.size(), "q");
        require(q.shape(2) == static_cast<std::size_t>(cache.head_dim), "head_dim");
        require(block_tables.ndim() == 2 && query_starts.size() == block_tables.shape(0) + 1, "block_tables");
        require(!scores || scores->ndim() == 3, "scores");
        Array out = like(q);
        const int tokens = narrow(positions.size());
        const int last = tokens ? *std::max_element(positions.data(), positions.data() + positions.size()) : 0;
        const Column<std::int32_t> at(*this, positions), starts(*this, query_starts), tables(*this, block_tables);
        gpu::AttentionShape shape{};
        shape.cache = cache.view();
        shape.max_blocks = narrow(block_tables.shape(1));
        shape.block_size = block_size;
        shape.num_splits = last / narrow(kSplitKeys) + 1;
        shape.positions = at;
        shape.query_starts = starts;
        shape.block_tables = tables;
        shape.q = q.floats();
        shape.out = out.floats();
        shape.num_heads = narrow(q.shape(1));
        shape.group_heads = group_heads;
        shape.first_head = first_head;
        shape.scale = scale;
        shape.window = window;
        const GilReleased released;
        std::optional<gpu::DeviceMemory> shown;
        if (scores) {
            shown.emplace(handle_, scores->size() * sizeof(float));
            gpu::upload(device_, shown->as<void>(), scores->data(), shown->bytes());
            shape.scores = shown->as<float>();
            shape.score_seq = score_seq;
            shape.score_context = narrow(scores->shape(2));
        }
        const std::size_t of_token = q.shape(1) * static_cast<std::size_t>(shape.num_splits) * (q.shape(2) + 2) * 4;
        const int at_once = narrow(std::max<std::size_t>(1, kPartsBytes / std::max<std::size_t>(1, of_token)));
        const gpu::DeviceMemory parts(handle_, static_cast<std::size_t>(std::min(tokens, at_once)) * of_token);
        shape.parts = parts.as<float>();
        for (int token = 0; token < tokens; token += at_once) {
            shape.first_token = token;
            shape.num_tokens = std::min(tokens - token, at_once);
            gpu::attention(device_, shape);
        }
        if (scores) gpu::download(device_, scores->data(), shown->as<void>(), shown->bytes());
        return out;
    }

private:
    static constexpr std::size_t kPartsBytes = std::size_t{64} << 20;  // of attention, at a time

    std::shared_ptr<gpu::Device> handle_;
    gpu::Device& device_;
    gpu::DeviceMemory lost_;

    // Numbers of the host on the device, for a launch.
    template <class T>
    class Column {
    public:
        Column(DeviceApi& api, const In<T>& from) : memory_(api.handle_, from.size() * sizeof(T)) {
            api.copy(memory_.template as<T>(), from);
        }
        operator const T*() const { return memory_.template as<T>(); }

    private:
        gpu::DeviceMemory memory_;
    };

    Array empty(Lengths shape, bool is_float = true) const { return Array::empty(handle_, std::move(shape), is_float); }
    Array like(const Array& x) const { return empty(x.shape()); }
    template <class T>
    void copy(T* to, const In<T>& from) {
        if (from.size()) gpu::upload(device_, to, from.data(), from.size() * sizeof(T));
    }

    // The layer of `shape`; x is of x_rows rows.
    void multiply(const Matrix& matrix, const gpu::LinearShape& shape, const float* x, int x_rows, int activations) {
        if (!matrix.in_blocks()) return gpu::float_linear(device_, matrix.format, shape, x);
        const auto width = static_cast<Activations>(activations);
        const std::size_t blocks = static_cast<std::size_t>(x_rows) * matrix.columns / kDigitColumns;
        const gpu::DeviceMemory digits(handle_, blocks * kDigitBlockBytes[activations]);
        gpu::quantise(device_, width, x, x_rows, shape.columns, digits.as<std::uint8_t>());
        gpu::integer_linear(device_, matrix.format, width, shape, digits.as<std::uint8_t>(), x_rows);
    }

    static void require_leaves(const std::vector<int>& leaves) {
        const std::size_t count = leaves.size();
        require(count >= 1 && count <= kMaxLeaves && (count & (count - 1)) == 0, "leaves");
        require(std::is_sorted(leaves.begin(), leaves.end()) && leaves[0] >= 0, "leaves");
    }
    static void require_below(const Numbers& numbers, int end, const char* what) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            require(numbers.data()[i] >= 0 && numbers.data()[i] < end, what);
    }
};

}  // namespace
}  // namespace karat

NB_MODULE(KARAT_DEVICE_MODULE, m) {
    using namespace karat;
    using namespace nb::literals;
    using D = DeviceApi;

    nb::exception<gpu::DeviceError>(m, "DeviceError");
    nb::exception<gpu::OutOfDeviceMemory>(m, "OutOfDeviceMemoryError");
    m.def("why_no_device", &gpu::why_no_device);
    nb::class_<Array>(m, "Array")
        .def_prop_ro("shape",
                     [](const Array& self) {
                         return nb::typed<nb::tuple, std::size_t, nb::ellipsis>(nb::tuple(nb::cast(self.shape())));
                     })
        .def_prop_ro("is_float", &Array::is_float)
        .def("__len__", [](const Array& self) { return self.ndim() ? self.shape(0) : 0; })
        .def("reshape", &Array::reshape, "shape"_a)
        .def("read", &Array::read<float>, "to"_a)
        .def("read", &Array::read<std::int32_t>, "to"_a);
    nb::class_<D>(m, "Device")
        .def(nb::init<unsigned>(), "number"_a)
        .def_prop_ro("name", &D::name)
        .def_prop_ro("free_bytes", &D::free_bytes)
        .def("array", &D::array<float>, "values"_a)
        .def("array", &D::array<std::int32_t>, "values"_a)
        .def("linear", &D::linear, "matrix"_a, "x"_a, "activations"_a, "leaves"_a, "bias"_a.none(), "residual"_a.none())
        .def("embedding", &D::embedding, "table"_a, "ids"_a)
        .def("select_rows", &D::select_rows, "x"_a, "rows"_a)
        .def("rms_norm", &D::rms_norm, "x"_a, "weight"_a, "eps"_a)
        .def("silu_mul", &D::silu_mul, "gate"_a, "up"_a)
        .def("sigmoid_mul", &D::sigmoid_mul, "x"_a, "gate"_a)
        .def("add", &D::add, "x"_a, "y"_a)
        .def("scale", &D::scale, "x"_a, "factor"_a)
        .def("rope", &D::rope, "x"_a, "positions"_a, "cos"_a, "sin"_a)
        .def("route", &D::route, "logits"_a, "chosen"_a, "renormalised"_a)
        .def("experts", &D::experts, "x"_a, "ids"_a, "weights"_a, "gates"_a, "ups"_a, "downs"_a, "first"_a, "leaves"_a,
             "activations"_a)
        .def("kv_write", &D::kv_write, "k"_a, "v"_a, "cache"_a, "slots"_a)
        .def("attention", &D::attention, "q"_a, "cache"_a, "positions"_a, "query_starts"_a, "block_tables"_a,
             "block_size"_a, "group_heads"_a, "first_head"_a, "scale"_a, "window"_a, "scores"_a.none(), "score_seq"_a);
    nb::class_<DeviceMatrix>(m, "DeviceMatrix")
        .def(
            "__init__",
            [](DeviceMatrix* self, const D& device, const std::string& stored_as, std::size_t rows, std::size_t columns,
               Bytes stored, std::size_t row_bytes, std::size_t first_byte, std::optional<In<std::int64_t>> order) {
                new (self)
                    DeviceMatrix(device.handle(), stored_as, rows, columns, stored, row_bytes, first_byte, order);
            },
            "device"_a, "stored_as"_a, "rows"_a, "columns"_a, "stored"_a, "row_bytes"_a, "first_byte"_a,
            "order"_a.none())
        .def_prop_ro("format", [](const DeviceMatrix& self) { return std::string(self.matrix().info().name); })
        .def_prop_ro("rows", &DeviceMatrix::rows)
        .def_prop_ro("columns", &DeviceMatrix::columns)
        .def_prop_ro("stored_bytes", &DeviceMatrix::stored_bytes)
        .def("read", &DeviceMatrix::read, "stored"_a);
    nb::class_<CacheMemory>(m, "CacheMemory")
        .def(
            "__init__",
            [](CacheMemory* self, const D& device, std::size_t regions, std::size_t region_bytes) {
                new (self) CacheMemory(device.handle(), regions, region_bytes);
            },
            "device"_a, "regions"_a, "region_bytes"_a);
    nb::class_<DeviceCache>(m, "DeviceCache")
        .def(
            "__init__",
            [](DeviceCache* self, const CacheMemory& memory, int type, int num_kv_heads, int head_dim,
               std::size_t layer_at) {
                require(type >= 0 && type <= 2 && num_kv_heads > 0 && head_dim > 0, "a cache");
                new (self) DeviceCache{memory, static_cast<CacheType>(type), num_kv_heads, head_dim, layer_at};
            },
            "memory"_a, "stored_as"_a, "num_kv_heads"_a, "head_dim"_a, "layer_at"_a);
}
