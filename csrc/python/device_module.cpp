// The Python modules karat._emulated and karat_cuda._cuda: a device (gpu/device.h), arrays in its memory, and what it
// computes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/device_api.h"

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
        .def("view", &Array::view, "first"_a, "shape"_a)
        .def("read", &Array::read<float>, "to"_a)
        .def("read", &Array::read<std::int32_t>, "to"_a);
    nb::class_<Recorded>(m, "Recorded").def("replay", &Recorded::replay);
    nb::class_<MatrixTable>(m, "MatrixTable")
        .def(
            "__init__",
            [](MatrixTable* self, const D& device, const std::vector<const DeviceMatrix*>& matrices) {
                new (self) MatrixTable(device.handle(), matrices);
            },
            "device"_a, "matrices"_a);
    nb::class_<D>(m, "Device")
        .def(nb::init<unsigned>(), "number"_a)
        .def_prop_ro("name", &D::name)
        .def_prop_ro("free_bytes", &D::free_bytes)
        .def("array", &D::array<float>, "values"_a)
        .def("array", &D::array<std::int32_t>, "values"_a)
        .def("floats", &D::floats, "shape"_a)
        .def("write", &D::write<float>, "to"_a, "values"_a)
        .def("write", &D::write<std::int32_t>, "to"_a, "values"_a)
        .def("fill", &D::fill, "to"_a, "byte"_a)
        .def("copy", &D::copy, "to"_a, "source"_a)
        .def("host_array", &D::host_array, "size"_a)
        .def("begin_recording", &D::begin_recording)
        .def("end_recording", &D::end_recording)
        .def("quantise", &D::quantise, "x"_a, "activations"_a)
        .def("linears", &D::linears, "matrices"_a, "x"_a, "digits"_a.none(), "activations"_a, "leaves"_a, "biases"_a,
             "residual"_a.none())
        .def("embedding", &D::embedding, "table"_a, "ids"_a)
        .def("select_rows", &D::select_rows, "x"_a, "rows"_a)
        .def("rms_norm", &D::rms_norm, "x"_a, "weight"_a, "eps"_a, "activations"_a)
        .def("l2_norm", &D::l2_norm, "x"_a, "eps"_a, "factor"_a)
        .def("square_sums", &D::square_sums, "q"_a, "k"_a, "q_leaves"_a, "k_leaves"_a, "k_first"_a)
        .def("part_norm", &D::part_norm, "x"_a, "squares"_a, "weight"_a, "eps"_a, "part"_a, "count"_a)
        .def("silu_mul", &D::silu_mul, "gate"_a, "up"_a, "activations"_a)
        .def("gelu_mul", &D::gelu_mul, "gate"_a, "up"_a, "activations"_a)
        .def("sigmoid_mul", &D::sigmoid_mul, "x"_a, "gate"_a)
        .def("add", &D::add, "x"_a, "y"_a)
        .def("mul", &D::mul, "x"_a, "y"_a)
        .def("scale_by", &D::scale_by, "x"_a, "weight"_a)
        .def("sigmoid", &D::sigmoid, "x"_a)
        .def("scale", &D::scale, "x"_a, "factor"_a)
        .def("soft_cap", &D::soft_cap, "x"_a, "cap"_a)
        .def("split", &D::split, "x"_a, "sizes"_a, "groups"_a)
        .def("rope", &D::rope, "x"_a, "positions"_a, "cos"_a, "sin"_a)
        .def("route", &D::route, "logits"_a, "chosen"_a, "by_sigmoid"_a, "renormalised"_a, "groups"_a,
             "chosen_groups"_a, "outside"_a, "plus"_a, "least"_a, "scale"_a, "bias"_a.none(), "scales"_a.none())
        .def("experts", &D::experts, "x"_a, "ids"_a, "weights"_a, "gates"_a, "ups"_a, "downs"_a, "first"_a, "leaves"_a,
             "by_columns"_a, "activations"_a, "biases"_a, "clamp"_a.none(), "by_gelu"_a, "most_floats"_a)
        .def("causal_conv", &D::causal_conv, "x"_a, "weight"_a, "bias"_a.none(), "state"_a, "query_starts"_a, "reads"_a,
             "writes"_a, "silu"_a)
        .def("decay", &D::decay, "a"_a, "bias"_a, "rate"_a, "of_log"_a)
        .def("delta_rule", &D::delta_rule, "q"_a, "k"_a, "v"_a, "decay"_a, "beta"_a, "state"_a, "query_starts"_a,
             "reads"_a, "writes"_a, "key_heads"_a)
        .def("kv_write", &D::kv_write, "k"_a, "v"_a, "cache"_a, "slots"_a, "lost"_a)
        .def("rope_kv_write", &D::rope_kv_write, "q"_a, "k"_a, "v"_a, "positions"_a, "cos"_a, "sin"_a, "cache"_a,
             "slots"_a, "lost"_a)
        .def("attention", &D::attention, "q"_a, "cache"_a, "positions"_a, "query_starts"_a, "block_tables"_a,
             "splits"_a, "block_size"_a, "group_heads"_a, "first_head"_a, "scale"_a, "cap"_a, "sinks"_a.none(),
             "window"_a, "scores"_a.none(), "score_seq"_a, "activations"_a)
        .def("finite_argmax", &D::finite_argmax, "logits"_a, "tops"_a)
        .def("largest", &D::largest, "logits"_a, "kept"_a);
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
        .def_prop_ro("in_blocks", [](const DeviceMatrix& self) { return self.matrix().in_blocks(); })
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
