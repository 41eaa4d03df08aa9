// The first pass over a recorded plan: ops that follow one another become one, by the rules that fuse.cpp lists.
#pragma once

#include <string>
#include <vector>

#include "plan/op.h"

namespace karat {

// Joins ops in place. Registers in `kept` are read after a run. Returns the name of the rule for each join, in order.
// No rule changes a bit: each joined op computes what the two did, in the same order.
std::vector<std::string> fuse(Ops& ops, const Registers& kept);

}  // namespace karat
