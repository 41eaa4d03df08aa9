// Checks of a step that several ops make.
#pragma once

#include "plan/op.h"
#include "plan/require.h"

namespace karat {

// Throws std::invalid_argument with `message` unless all numbers are 0 … end - 1.
inline void require_below(const std::int32_t* numbers, std::size_t count, std::size_t end, const char* message) {
    std::uint32_t largest = 0;  // a negative number is larger than any other
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<std::uint32_t>(numbers[i]));
    require(count == 0 || largest < end, message);
}

}  // namespace karat
