// The numbers that C++ and Python share, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds the constants to the extension. Python code that also runs without the extension has copies of its own;
// tests/native/test_constants.py compares them.
void bind_constants(nanobind::module_& m);

}  // namespace karat
