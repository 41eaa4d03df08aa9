// Searches and sums over a row of logits, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace karat {

// Adds the functions of sampling.h to the extension.
void bind_sampling(nanobind::module_& m);

}  // namespace karat
