// The floating-point environment that the kernels' contracts assume.
#pragma once

#include <cfenv>

namespace karat {

// Round to nearest, denormals kept, no traps, for the life of the object; then what the caller had. Other libraries
// change these per thread (flush-to-zero above all), and the bits of a result would change with them.
class DefaultFloatEnv {
public:
    DefaultFloatEnv() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatEnv() { std::fesetenv(&saved_); }
    DefaultFloatEnv(const DefaultFloatEnv&) = delete;
    DefaultFloatEnv& operator=(const DefaultFloatEnv&) = delete;

private:
    std::fenv_t saved_;
};

}  // namespace karat
