#include "gpu/integer_launches.h"

template void karat::gpu::integer_linear_of<2>(Device&, Format, const LinearShape&, const std::uint8_t*, int);
