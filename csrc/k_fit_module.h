// The search for the scales of K formats, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds fit_with_minimum and fit_symmetric to the extension.
void bind_k_fit(nanobind::module_& m);

}  // namespace karat
