// The numbers that C++ and Python share, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds them to the extension. Python reads them there, or, where it computes without the extension too, has its own,
// which tests/native/test_constants.py compares.
void bind_constants(nanobind::module_& m);

}  // namespace karat
