#include "python/constants_module.h"

#include <string>

#include "contract/kernels.h"
#include "contract/packed.h"
#include "group/collective.h"
#include "kernels/sampling.h"
#include "runtime/pool.h"

namespace nb = nanobind;

namespace karat {
namespace {

// Name of each stored type with kernels: (columns of a block, bytes of a block).
nb::dict format_blocks() {
    nb::dict found;
    for (const FormatInfo& info : kFormats)
        found[nb::str(info.name)] = nb::make_tuple(info.block_columns, info.block_bytes);
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
