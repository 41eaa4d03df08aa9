// karat._native's functions over rows, for karat.ops.rows.
#include "python/sampling_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kernels/sampling.h"

namespace nb = nanobind;

namespace karat {
namespace {

template <class T>
using Row = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyRow = std::variant<Row<float>, Row<double>>;

const float* some(const Row<float>& row) {
    if (row.shape(0) == 0) throw std::invalid_argument("a row of no values");
    return row.data();
}

// Of a row with NaN and no largest value the first NaN, as numpy.argmax says.
std::size_t argmax_of(const Row<float>& row) {
    const float* values = some(row);
    const std::size_t size = row.shape(0), found = argmax(values, size);
    if (found < size) return found;
    const auto is_nan = [](float x) { return x != x; };
    return static_cast<std::size_t>(std::find_if(values, values + size, is_nan) - values);
}

// A NumPy array that owns `values`.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

auto largest_of(const AnyRow& any, std::size_t num) {
    const auto found = [&](const auto& row) {
        if (num == 0 || num > row.shape(0))
            throw std::invalid_argument(std::to_string(num) + " of " + std::to_string(row.shape(0)) + " values");
        return array_of(largest(row.data(), row.shape(0), num));
    };
    return std::visit(found, any);
}

auto weights_of(const AnyRow& any, double top, double temperature) {
    const auto made = [&](const auto& row) {
        std::vector<double> weights(row.shape(0));
        exp_weights(row.data(), row.shape(0), top, temperature, weights.data());
        return array_of(std::move(weights));
    };
    return std::visit(made, any);
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("argmax", &argmax_of, nb::arg("row").noconvert());
    m.def(
        "finite_argmax", [](Row<float> row) { return finite_argmax(some(row), row.shape(0)); },
        nb::arg("row").noconvert());
    m.def("largest", &largest_of, nb::arg("row").noconvert(), nb::arg("num"));
    m.def("exp_weights", &weights_of, nb::arg("row").noconvert(), nb::arg("top"), nb::arg("temperature"));
    m.def(
        "exp_sum", [](Row<float> row, double top) { return exp_sum(row.data(), row.shape(0), top); },
        nb::arg("row").noconvert(), nb::arg("top"));
}

}  // namespace karat
