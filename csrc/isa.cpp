#include "isa.h"

#include <algorithm>
#include <stdexcept>

namespace karat {
namespace {

// A name with a hyphen: the instructions of what stands before it, arranged for the cores of one maker.
struct Build {
    const char* name;
    const Kernels* kernels;
    const FitKernels* fits;
    bool (*runs_here)();
};

#ifdef KARAT_X86
// The compiler's own detection, which also asks whether the operating system saves the wide registers.
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && has_avx2();
}
bool is_intel() { return __builtin_cpu_is("intel"); }
#endif

constexpr Build kBuilds[] = {
    {"generic", &generic::kernels, &generic::fit_kernels, [] { return true; }},
#ifdef KARAT_X86
    {"avx2", &avx2::kernels, &avx2::fit_kernels, [] { return has_avx2(); }},
    // It runs on any maker's cores; on Intel's it is the fastest.
    {"avx512-intel", &avx512_intel::kernels, &avx512::fit_kernels, [] { return has_avx512() && !is_intel(); }},
    {"avx512", &avx512::kernels, &avx512::fit_kernels, [] { return has_avx512(); }},
    {"avx512-intel", &avx512_intel::kernels, &avx512::fit_kernels, [] { return has_avx512() && is_intel(); }},
#endif
#ifdef KARAT_ARM
    {"neon", &neon::kernels, &neon::fit_kernels, [] { return true; }},  // part of every 64-bit Arm
#endif
};

const Build& build_for(std::string_view isa) {
    std::string runnable;
    for (const Build& build : kBuilds) {
        if (!build.runs_here()) continue;
        if (isa == build.name) return build;
        runnable += runnable.empty() ? build.name : std::string(", ") + build.name;
    }
    throw std::invalid_argument("instruction set '" + std::string(isa) +
                                "' cannot run here; this CPU and this build offer: " + runnable);
}

}  // namespace

std::vector<std::string> compiled_isas() {
    std::vector<std::string> names;
    for (const Build& build : kBuilds)
        if (std::find(names.begin(), names.end(), build.name) == names.end()) names.emplace_back(build.name);
    return names;
}

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Build& build : kBuilds)
        if (build.runs_here()) names.emplace_back(build.name);
    return names;
}

const Kernels& kernels_for(std::string_view isa) { return *build_for(isa).kernels; }

const FitKernels& fit_kernels_for(std::string_view isa) { return *build_for(isa).fits; }

}  // namespace karat
