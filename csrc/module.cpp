// karat._native: the kernels for Python. Shapes are checked here once more, so that no call can read outside an array;
// the typed errors with names and remedies are karat.ops.native's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "float_env.h"
#include "isa.h"

namespace nb = nanobind;

namespace {

using InMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using InVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The kernels of one build, as chosen by name.
class NativeKernels {
public:
    explicit NativeKernels(const std::string& isa) : isa_(isa), kernels_(karat::kernels_for(isa)) {}

    const std::string& isa() const { return isa_; }

    void rms_norm(InMatrix x, InVector weight, double eps, OutMatrix out) const {
        const std::size_t rows = x.shape(0), n = x.shape(1);
        if (n == 0 || n > karat::kMaxColumns)
            throw std::invalid_argument("rms_norm: rows of " + std::to_string(n) + " elements; from 1 to " +
                                        std::to_string(karat::kMaxColumns) + " are possible");
        if (weight.shape(0) != n)
            throw std::invalid_argument("rms_norm: a weight of " + std::to_string(weight.shape(0)) +
                                        " elements for rows of " + std::to_string(n));
        if (out.shape(0) != rows || out.shape(1) != n)
            throw std::invalid_argument("rms_norm: out must have the shape of x");
        nb::gil_scoped_release released;
        karat::DefaultFloatEnv env;
        kernels_.rms_norm(x.data(), weight.data(), eps, out.data(), rows, n);
    }

private:
    std::string isa_;
    const karat::Kernels& kernels_;
};

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Karat's C++ kernels. Use them through karat.ops.native.";
    m.attr("compiler") = KARAT_COMPILER;
    // A model that a program keeps until its end is no leak to report on its terminal.
    nb::set_leak_warnings(false);
    m.def("supported_isas", &karat::supported_isas,
          "Names of the kernel builds that this CPU can run, from the slowest to the fastest.");
    // Arrays are never converted: a copy of the wrong type or layout would hide a mistake, and `out` would be lost.
    nb::class_<NativeKernels>(m, "Kernels")
        .def(nb::init<const std::string&>(), nb::arg("isa"))
        .def_prop_ro("isa", &NativeKernels::isa)
        .def("rms_norm", &NativeKernels::rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
             nb::arg("eps"), nb::arg("out").noconvert());
}
