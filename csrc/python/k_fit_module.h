// The searches for scales, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds fit_with_minimum, fit_symmetric, fit_in_turn, fit_levels and nearest_levels to the extension.
void bind_k_fit(nanobind::module_& m);

}  // namespace karat
