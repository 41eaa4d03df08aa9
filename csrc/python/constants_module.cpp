#include "python/constants_module.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>
#include <utility>

#include "contract/kernels.h"
#include "contract/packed.h"
#include "group/collective.h"
#include "kernels/sampling.h"
#include "runtime/pool.h"

namespace nb = nanobind;

namespace karat {
namespace {

// Name of each stored type with kernels: (columns of a block, bytes of a block).
std::map<std::string, std::pair<std::size_t, std::size_t>> format_blocks() {
    std::map<std::string, std::pair<std::size_t, std::size_t>> found;
    for (const FormatInfo& info : kFormats) found[info.name] = {info.block_columns, info.block_bytes};
    return found;
}

}  // namespace

void bind_constants(nb::module_& m) {
    m.attr("GROUP_ROWS") = kGroupRows;
    m.attr("PANEL_ROWS") = kPanelGroups * kGroupRows;
    m.attr("NUM_LEAVES") = kMaxLeaves;
    m.attr("EXP_SUMS") = kExpSums;
    m.attr("MAX_THREADS") = Pool::kMaxThreads;
    m.attr("MAX_RANKS") = SharedMemory::kMaxRanks;
    m.attr("CONTROL_BYTES") = SharedMemory::kControlBytes;
    m.def("format_blocks", &format_blocks);
}

}  // namespace karat
