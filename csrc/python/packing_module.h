// Matrices on their way from files into the packed layout, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds the classes Matrix and Packer and the function pack to the extension.
void bind_packing(nanobind::module_& m);

}  // namespace karat
