// Which builds of the kernels are in this extension, and which of them this CPU can run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "contract/kernels.h"
#include "measure/limits.h"
#include "search/k_fit.h"

namespace karat {

// Names of all builds in this extension, also those that this CPU cannot run, from the slowest to the fastest.
std::vector<std::string> compiled_isas();

// Names of the builds that this CPU and operating system can run, from the slowest to the fastest.
std::vector<std::string> supported_isas();

// The kernels of one build. Throws std::invalid_argument for a name that supported_isas() does not list.
const Kernels& kernels_for(std::string_view isa);

// Those of linear layers of integers. Throws as kernels_for.
const IntegerKernels& integer_kernels_for(std::string_view isa);

// The searches (k_fit.h) of one build. Throws as kernels_for.
const FitKernels& fit_kernels_for(std::string_view isa);

// The measurements (limits.h) of one build. Throws as kernels_for, and for an arrangement (a name with a hyphen), which
// has none.
const LimitKernels& limit_kernels_for(std::string_view isa);

}  // namespace karat
