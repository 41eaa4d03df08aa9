// Whether this process may use Intel's tiles (AMX). The processor has to have them, the system has to save them, and
// the process has to ask for them once: their registers are larger than what programs of before have room for.
#pragma once

#include <cstdint>
#include <string>

namespace karat {

// What is asked, in this order. Instructions on tiles end a process that may not use them, so they come last.
struct TileSystem {
    bool (*has)();             // the processor, for products of bf16
    bool (*saves)();           // the system, at switches of threads
    int (*ask)();              // the system to let this process use them: 0, or its error
    bool (*multiply_right)();  // a trial
};

struct TileUse {
    bool granted;
    std::string refusal;  // why not, although the processor has them; else empty
};

TileUse try_tiles(const TileSystem& system);

// The machine at hand. All threads of the process may use what it grants, and processes that it forks.
TileSystem this_system(bool (*multiply_right)());

}  // namespace karat
