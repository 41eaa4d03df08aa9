// Seconds since some moment, for differences.
#pragma once

#include <chrono>

namespace karat {

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace karat
