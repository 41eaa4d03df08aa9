// The limits of the machine, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds the class Limits to the extension.
void bind_limits(nanobind::module_& m);

}  // namespace karat
