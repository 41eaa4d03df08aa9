// karat._native.fit_… and nearest_levels: see k_fit.h, src/karat/quant/k_fit.py and level_fit.py.
#include "python/k_fit_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "python/gil.h"
#include "runtime/float_env.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace karat {
namespace {

using Values = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using Levels = nb::ndarray<const float, nb::shape<16>, nb::c_contig, nb::device::cpu>;

void check(bool fits) {
    if (!fits) throw std::invalid_argument("arrays of a fit that do not fit together");
}

// Whether there is a number for each group; and an integer for each value, in groups of `size`.
template <class Array>
bool one_each(const Values& values, const Array& numbers) {
    return numbers.shape(0) == values.shape(0) && numbers.shape(1) == 1;
}
bool one_for_each(const Values& values, const Integers& integers, std::size_t size) {
    return values.shape(1) == size && integers.shape(0) == values.shape(0) && integers.shape(1) == size;
}

void fit_with_minimum(const std::string& isa, Values values, int largest, float first, float step, int num_steps,
                      bool absolute, Floats scales, Floats minimums, Integers integers) {
    check(one_for_each(values, integers, absolute ? 16 : 32) && one_each(values, scales) && one_each(values, minimums));
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    kernels.with_minimum(values.data(), values.shape(0), static_cast<float>(largest), first, step, num_steps, absolute,
                         scales.data(), minimums.data(), integers.data());
}

template <auto kSearch>
void fit_symmetric(const std::string& isa, Values values, int largest, Floats scales, Integers integers) {
    check(one_for_each(values, integers, 16) && one_each(values, scales));
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    (kernels.*kSearch)(values.data(), values.shape(0), static_cast<float>(largest), scales.data(), integers.data());
}

void fit_levels(const std::string& isa, Values values, Levels levels, int num_steps, Floats scales) {
    check(values.shape(1) == 32 && one_each(values, scales));
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    kernels.levels(values.data(), values.shape(0), levels.data(), num_steps, scales.data());
}

void nearest_levels(const std::string& isa, Values values, Levels levels, Values inverses, Integers chosen) {
    check(one_for_each(values, chosen, 32) && one_each(values, inverses));
    const FitKernels& kernels = fit_kernels_for(isa);
    const GilReleased released;
    const DefaultFloatEnv environment;
    kernels.nearest_levels(values.data(), values.shape(0), levels.data(), inverses.data(), chosen.data());
}

}  // namespace

void bind_k_fit(nb::module_& m) {
    m.def("fit_with_minimum", &fit_with_minimum, nb::arg("isa"), nb::arg("values").noconvert(), nb::arg("largest"),
          nb::arg("first"), nb::arg("step"), nb::arg("num_steps"), nb::arg("absolute"), nb::arg("scales").noconvert(),
          nb::arg("minimums").noconvert(), nb::arg("integers").noconvert());
    m.def("fit_symmetric", &fit_symmetric<&FitKernels::symmetric>, nb::arg("isa"), nb::arg("values").noconvert(),
          nb::arg("largest"), nb::arg("scales").noconvert(), nb::arg("integers").noconvert());
    m.def("fit_in_turn", &fit_symmetric<&FitKernels::in_turn>, nb::arg("isa"), nb::arg("values").noconvert(),
          nb::arg("largest"), nb::arg("scales").noconvert(), nb::arg("integers").noconvert());
    m.def("fit_levels", &fit_levels, nb::arg("isa"), nb::arg("values").noconvert(), nb::arg("levels").noconvert(),
          nb::arg("num_steps"), nb::arg("scales").noconvert());
    m.def("nearest_levels", &nearest_levels, nb::arg("isa"), nb::arg("values").noconvert(),
          nb::arg("levels").noconvert(), nb::arg("inverses").noconvert(), nb::arg("chosen").noconvert());
}

}  // namespace karat
