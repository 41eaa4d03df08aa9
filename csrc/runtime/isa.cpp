#include "runtime/isa.h"

#include <algorithm>
#include <stdexcept>
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "runtime/tiles.h"

namespace karat {
namespace {

// A name with a hyphen is an arrangement: the kernels of avx512 for the cores of one maker (avx512-intel), or with
// instructions that only integers use (avx2-vnni, avx512-vnni, avx512-amx).
struct Build {
    const char* name;
    const Kernels* kernels;
    const IntegerKernels* integers;  // null: compiled for its limits and for what others take from it, no build to run
    const FitKernels* fits;
    const LimitKernels* limits;  // none of their own for an arrangement
    bool (*runs_here)();
};

#ifdef KARAT_X86
// The compiler's own detection, which also asks whether the operating system saves the wide registers.
[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
[[maybe_unused]] bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && has_avx2();
}
[[maybe_unused]] bool has_avx2_vnni() { return __builtin_cpu_supports("avxvnni") && has_avx2(); }
[[maybe_unused]] bool has_avx512_vnni() { return __builtin_cpu_supports("avx512vnni") && has_avx512(); }
[[maybe_unused]] bool is_intel() { return __builtin_cpu_is("intel"); }
#ifdef KARAT_WITH_AVX512_AMX
const TileUse& tiles() {
#ifdef KARAT_TILES_BY_LOOPS
    static const TileUse use{true, ""};
#else
    static const TileUse use = try_tiles(this_system(avx512_amx::tiles_multiply));
#endif
    return use;
}
#endif
#endif

#ifdef KARAT_ARM
// What the system says of the processor.
#if defined(__linux__)
[[maybe_unused]] bool has_dotprod() { return getauxval(AT_HWCAP) & (1ul << 20); }
[[maybe_unused]] bool has_i8mm() { return getauxval(AT_HWCAP2) & (1ul << 13); }
#elif defined(__APPLE__)
bool has_feature(const char* name) {
    int has = 0;
    std::size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has;
}
[[maybe_unused]] bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
[[maybe_unused]] bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
[[maybe_unused]] bool has_dotprod() { return false; }
[[maybe_unused]] bool has_i8mm() { return false; }
#endif
#endif

// The builds in this extension (KARAT_WITH_…), from the slowest to the fastest.
constexpr Build kBuilds[] = {
    {"generic", &generic::kernels, &generic::integer_kernels, &generic::fit_kernels, &generic::limit_kernels,
     [] { return true; }},
#ifdef KARAT_WITH_AVX2
    {"avx2", &avx2::kernels, &avx2::integer_kernels, &avx2::fit_kernels, &avx2::limit_kernels,
     [] { return has_avx2(); }},
#endif
#ifdef KARAT_WITH_AVX2_VNNI
    {"avx2-vnni", &avx2::kernels, &avx2_vnni::integer_kernels, &avx2::fit_kernels, nullptr,
     [] { return has_avx2_vnni(); }},
#endif
#ifdef KARAT_WITH_AVX512_INTEL
    // It runs on any maker's cores; on Intel's it is the fastest.
    {"avx512-intel", &avx512_intel::kernels, &avx512_vnni_intel::integer_kernels, &avx512::fit_kernels, nullptr,
     [] { return has_avx512_vnni() && !is_intel(); }},
#endif
#ifdef KARAT_WITH_AVX512
    {"avx512", &avx512::kernels,
#ifdef KARAT_NO_AVX512_INTEGERS
     nullptr,
#else
     &avx512::integer_kernels,
#endif
     &avx512::fit_kernels, &avx512::limit_kernels, [] { return has_avx512(); }},
#endif
#ifdef KARAT_WITH_AVX512_VNNI
    {"avx512-vnni", &avx512::kernels, &avx512_vnni::integer_kernels, &avx512::fit_kernels, nullptr,
     [] { return has_avx512_vnni(); }},
#endif
#ifdef KARAT_WITH_AVX512_INTEL
    {"avx512-intel", &avx512_intel::kernels, &avx512_vnni_intel::integer_kernels, &avx512::fit_kernels, nullptr,
     [] { return has_avx512_vnni() && is_intel(); }},
#endif
#ifdef KARAT_WITH_AVX512_AMX
    {"avx512-amx", &avx512_intel::kernels, &avx512_amx::integer_kernels, &avx512::fit_kernels, nullptr,
     [] { return has_avx512_vnni() && tiles().granted; }},
#endif
#ifdef KARAT_WITH_NEON
    {"neon", &neon::kernels, &neon::integer_kernels, &neon::fit_kernels, &neon::limit_kernels,
     [] { return true; }},  // part of every 64-bit Arm
#endif
#ifdef KARAT_WITH_NEON_DOTPROD
    {"neon-dotprod", &neon::kernels, &neon_dotprod::integer_kernels, &neon::fit_kernels, nullptr,
     [] { return has_dotprod(); }},
#endif
#ifdef KARAT_WITH_NEON_I8MM
    {"neon-i8mm", &neon::kernels, &neon_i8mm::integer_kernels, &neon::fit_kernels, nullptr,
     [] { return has_dotprod() && has_i8mm(); }},
#endif
};

bool can_run(const Build& build) { return build.integers != nullptr && build.runs_here(); }

const Build& build_for(std::string_view isa) {
    std::string runnable;
    for (const Build& build : kBuilds) {
        if (!can_run(build)) continue;
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
        if (build.integers != nullptr && std::find(names.begin(), names.end(), build.name) == names.end())
            names.emplace_back(build.name);
    return names;
}

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Build& build : kBuilds)
        if (can_run(build)) names.emplace_back(build.name);
    return names;
}

std::vector<std::pair<std::string, std::string>> refused_isas() {
    std::vector<std::pair<std::string, std::string>> refused;
#ifdef KARAT_WITH_AVX512_AMX
    if (!tiles().refusal.empty()) refused.emplace_back("avx512-amx", tiles().refusal);
#endif
    return refused;
}

const Kernels& kernels_for(std::string_view isa) { return *build_for(isa).kernels; }

const IntegerKernels& integer_kernels_for(std::string_view isa) { return *build_for(isa).integers; }

const FitKernels& fit_kernels_for(std::string_view isa) { return *build_for(isa).fits; }

std::vector<std::string> limit_isas() {
    std::vector<std::string> names;
    for (const Build& build : kBuilds)
        if (build.limits != nullptr && build.runs_here()) names.emplace_back(build.name);
    return names;
}

const LimitKernels& limit_kernels_for(std::string_view isa) {
    for (const Build& build : kBuilds)
        if (isa == build.name && build.limits != nullptr && build.runs_here()) return *build.limits;
    throw std::invalid_argument(std::string(isa) + " has no limits of its own here: ask for one of limit_isas()");
}

}  // namespace karat
