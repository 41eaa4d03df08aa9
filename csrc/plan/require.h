// What recording, finishing and running a plan refuse.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace karat {

inline constexpr std::size_t kMaxCount = 0x7fffffff;  // of what a step counts in int32

// Throws std::invalid_argument unless the condition holds. Checks of a step pass a literal: a step allocates nothing.
inline void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}
inline void require(bool condition, const std::string& message) { require(condition, message.c_str()); }

}  // namespace karat
