// Prints which builds of the kernels a processor would be offered: its maker, and its features, are the arguments.
//   isa_choice MAKER [FEATURE ...]
// runtime/isa.cpp is part of this program as it is; what it asks of the processor is answered by the arguments
// (isa_choice.h), and kernels are empty tables.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/isa.h"
#include "runtime/tiles.h"

namespace {
std::string maker;
std::vector<std::string> features;
}  // namespace

bool pretends_to_have(const char* feature) {
    return std::find(features.begin(), features.end(), feature) != features.end();
}
bool pretends_to_be(const char* name) { return maker == name; }

namespace karat {
#define TABLES(build)                             \
    namespace build {                             \
    extern const Kernels kernels = {};            \
    extern const FitKernels fit_kernels = {};     \
    extern const LimitKernels limit_kernels = {}; \
    }
#define INTEGERS(build)                               \
    namespace build {                                 \
    extern const IntegerKernels integer_kernels = {}; \
    }
TABLES(generic)
INTEGERS(generic)
TABLES(avx2)
INTEGERS(avx2)
INTEGERS(avx2_vnni)
TABLES(avx512)
INTEGERS(avx512)
INTEGERS(avx512_vnni)
INTEGERS(avx512_vnni_intel)
INTEGERS(avx512_amx)
namespace avx512_intel {
extern const Kernels kernels = {};
}
bool avx512_amx::tiles_multiply() { return true; }
TileSystem this_system(bool (*)()) { return {}; }
TileUse try_tiles(const TileSystem&) {
    if (pretends_to_have("amx-refused")) return {false, "refused"};
    return {pretends_to_have("amx"), ""};
}
}  // namespace karat

namespace {
using namespace karat;

void print(const char* what, const std::vector<std::string>& names) {
    std::printf("%s", what);
    for (const std::string& name : names) std::printf(" %s", name.c_str());
    std::printf("\n");
}

const char* name_of(const IntegerKernels& integers) {
    if (&integers == &avx2::integer_kernels) return "avx2";
    if (&integers == &avx2_vnni::integer_kernels) return "avx2_vnni";
    if (&integers == &avx512::integer_kernels) return "avx512";
    if (&integers == &avx512_vnni::integer_kernels) return "avx512_vnni";
    if (&integers == &avx512_vnni_intel::integer_kernels) return "avx512_vnni_intel";
    if (&integers == &avx512_amx::integer_kernels) return "avx512_amx";
    return "generic";
}
}  // namespace

int main(int argc, char** argv) {
    maker = argv[1];
    features.assign(argv + 2, argv + argc);
    print("compiled", compiled_isas());
    print("supported", supported_isas());
    print("limits", limit_isas());
    for (const auto& [isa, reason] : refused_isas()) std::printf("refused %s %s\n", isa.c_str(), reason.c_str());
    for (const std::string& isa : supported_isas())
        std::printf("%s has integers of %s\n", isa.c_str(), name_of(integer_kernels_for(isa)));
}
