// What ops in which all ranks take part have in common.
#pragma once

#include "plan/op.h"
#include "plan/require.h"
#include "runtime/memory.h"

namespace karat {

// An op in which all ranks take part. Threads share its rows.
struct CollectiveOp : RowOp {
    std::uint32_t collective = 0;  // of the plan
    bool needs_barrier_before() const override { return true; }
};

// Throws std::invalid_argument if the slots of the group have no room for rows of float32.
inline void require_room_in_slots(const Finishing& finishing, Rows rows, std::size_t width) {
    require(product({finishing.limits.of(rows), width, sizeof(float)}) <= finishing.group->slot_bytes,
            "the slots of the group are too small for such a step");
}

}  // namespace karat
