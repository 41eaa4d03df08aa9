// karat._native.fit_with_minimum and fit_symmetric: see k_fit.h and src/karat/quant/k_fit.py.
#include "k_fit_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "float_env.h"
#include "gil.h"
#include "isa.h"

namespace nb = nanobind;

namespace karat {
namespace {

using Values = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What is written must be as long as what is read; `size` is that of a group.
void check(const Values& values, const Integers& integers, const Floats& numbers, std::size_t size) {
    if (values.shape(1) != size || integers.shape(0) != values.shape(0) || integers.shape(1) != size ||
        numbers.shape(0) != values.shape(0) || numbers.shape(1) != 1)
        throw std::invalid_argument("arrays of a fit that do not fit together");
}

void fit_with_minimum(const std::string& isa, Values values, int largest, float first, float step, int num_steps,
                      Floats scales, Floats minimums, Integers integers) {
    check(values, integers, scales, 32);
    check(values, integers, minimums, 32);
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    kernels.with_minimum(values.data(), values.shape(0), static_cast<float>(largest), first, step, num_steps,
                         scales.data(), minimums.data(), integers.data());
}

void fit_symmetric(const std::string& isa, Values values, int largest, Floats scales, Integers integers) {
    check(values, integers, scales, 16);
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    kernels.symmetric(values.data(), values.shape(0), static_cast<float>(largest), scales.data(), integers.data());
}

}  // namespace

void bind_k_fit(nb::module_& m) {
    m.def("fit_with_minimum", &fit_with_minimum, nb::arg("isa"), nb::arg("values").noconvert(), nb::arg("largest"),
          nb::arg("first"), nb::arg("step"), nb::arg("num_steps"), nb::arg("scales").noconvert(),
          nb::arg("minimums").noconvert(), nb::arg("integers").noconvert());
    m.def("fit_symmetric", &fit_symmetric, nb::arg("isa"), nb::arg("values").noconvert(), nb::arg("largest"),
          nb::arg("scales").noconvert(), nb::arg("integers").noconvert());
}

}  // namespace karat
