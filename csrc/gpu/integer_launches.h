// Layers of integers of one width, for all block formats: one width a source, which compile side by side.
#pragma once

#include "gpu/integer_few.h"
#include "gpu/integer_many.h"
#include "gpu/launches.h"

namespace karat::gpu {

template <int kDigits>
void integer_linear_of(Device& device, Format format, const LinearShape& shape, const std::uint8_t* digits,
                       int digits_rows);
extern template void integer_linear_of<1>(Device&, Format, const LinearShape&, const std::uint8_t*, int);
extern template void integer_linear_of<2>(Device&, Format, const LinearShape&, const std::uint8_t*, int);
extern template void integer_linear_of<3>(Device&, Format, const LinearShape&, const std::uint8_t*, int);

template <int kDigits>
void integer_linear_of(Device& device, Format format, const LinearShape& shape, const std::uint8_t* digits,
                       int digits_rows) {
    const auto with = [&]<class Fmt>() {
        if (shape.tokens == 1 || shape.chosen.matrices)
            launch(device, IntegerFew<Fmt, kDigits, 1>{shape, digits, digits_rows});
        else if (shape.tokens <= kFewTokens) launch(device, IntegerFew<Fmt, kDigits, 4>{shape, digits, digits_rows});
        else launch(device, IntegerMany<Fmt, kDigits>{shape, digits, digits_rows});
    };
    switch (format) {
#define KARAT_CASE(name, ...) \
    case Format::name: return with.template operator()<name>();
        KARAT_BLOCK_FORMATS(KARAT_CASE)
#undef KARAT_CASE
        default: return;
    }
}

}  // namespace karat::gpu
