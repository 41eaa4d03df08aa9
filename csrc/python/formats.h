// Stored formats by name, for the modules.
#pragma once

#include <stdexcept>
#include <string>

#include "contract/packed.h"

namespace karat {

inline Format format_of(const std::string& name) {
    for (int i = 0; i < kNumFormats; ++i)
        if (name == kFormats[i].name) return static_cast<Format>(i);
    throw std::invalid_argument("no kernels for stored type '" + name + "'");
}

}  // namespace karat
