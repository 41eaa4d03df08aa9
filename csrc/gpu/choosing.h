// What is known of a row of logits without a copy of it: whether all are finite, and the first of the largest.
#pragma once

#include "gpu/simt.h"

namespace karat::gpu {

// out[row] becomes the least of itself and, over the row, of what `told` says: of the largest number the first index in
// its lower half, or 0 if a number is not finite. Who begins with all bits set has nothing else there.
struct FiniteArgmax {
    static constexpr int kThreads = 256, kColumns = 4096;  // of a block of threads
    const float* x;                                        // [rows, columns]
    int rows, columns;
    std::uint64_t* out;

    Grid grid() const { return {pieces(columns, kColumns), rows, kThreads, sizeof(std::uint64_t) * kThreads}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const auto least = cta.template shared<std::uint64_t>(kThreads);
        cta.each([&](int thread) {
            const float* const row = x + static_cast<std::size_t>(cta.y()) * columns;
            const int first = cta.x() * kColumns, end = first + kColumns < columns ? first + kColumns : columns;
            std::uint64_t found = ~std::uint64_t{0};
            for (int i = first + thread; i < end; i += kThreads) {
                const std::uint64_t next = told(value_at<float>(row + i), i);
                found = next < found ? next : found;
            }
            least.set(thread, found);
        });
        for (int half = kThreads / 2; half > 0; half /= 2) {
            cta.sync();
            cta.each([&](int thread) {
                if (thread >= half) return;
                const std::uint64_t mine = least.get(thread), other = least.get(thread + half);
                least.set(thread, other < mine ? other : mine);
            });
        }
        cta.each([&](int thread) {
            if (thread == 0) keep_least(out + cta.y(), least.get(0));
        });
    }

private:
    // Less for a larger number, and for an equal one that comes first; both zeros are equal.
    static KARAT_INLINE std::uint64_t told(float number, int index) {
        const std::uint32_t bits = bits_of(number + 0.0f);
        if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
        const std::uint32_t descending = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
        return static_cast<std::uint64_t>(descending) << 32 | static_cast<std::uint32_t>(index);
    }
};

}  // namespace karat::gpu
