// Which builds of the kernels are in this extension, and which of them this CPU can run.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/kernels.h"
#include "measure/limits.h"
#include "search/k_fit.h"

namespace karat {

// Names of all builds in this extension, also those that this CPU cannot run, from the slowest to the fastest.
std::vector<std::string> compiled_isas();

// Names of the builds that this CPU and operating system can run, from the slowest to the fastest.
std::vector<std::string> supported_isas();

// Builds that this CPU could run and the system does not allow, with the reason.
std::vector<std::pair<std::string, std::string>> refused_isas();

// The kernels of one build. Throws std::invalid_argument for a name that supported_isas() does not list.
const Kernels& kernels_for(std::string_view isa);

// Those of linear layers of integers. Throws as kernels_for.
const IntegerKernels& integer_kernels_for(std::string_view isa);

// The searches (k_fit.h) of one build. Throws as kernels_for.
const FitKernels& fit_kernels_for(std::string_view isa);

// Names of the instruction sets that have measurements (limits.h) and can run here, from the slowest to the fastest. No
// arrangement (a name with a hyphen) has any, and an instruction set has them also where it is no build of its own.
std::vector<std::string> limit_isas();

// The measurements of one of limit_isas(). Throws std::invalid_argument for any other name.
const LimitKernels& limit_kernels_for(std::string_view isa);

}  // namespace karat
