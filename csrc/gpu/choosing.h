// What is known of a row of logits without a copy of it: whether all are finite, the first of the largest, and the
// largest ones.
#pragma once

#include "gpu/shapes.h"
#include "gpu/simt.h"

namespace karat::gpu {

// Less for a larger number, and for an equal one that comes first; both zeros are equal. 0 if it is not finite.
KARAT_INLINE std::uint64_t rank_of(float number, int index) {
    const std::uint32_t bits = bits_of(number + 0.0f);
    if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    const std::uint32_t descending = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
    return static_cast<std::uint64_t>(descending) << 32 | static_cast<std::uint32_t>(index);
}

// out[row] becomes the least of itself and of the ranks of the row: of the largest number the first index in its lower
// half, or 0 if a number is not finite. Who begins with all bits set has nothing else there.
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
                const std::uint64_t next = rank_of(value_at<float>(row + i), i);
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
};

// The least `kept` ranks of each piece of a row, ascending; where a row has one piece, the numbers that they rank.
//
// A piece is sorted in runs of `kept`. Then half of the runs meet the other half: of a run and of another one backwards
// the lesser ranks are the least of both, and `log2(kept)` steps sort them.
struct Largest {
    static constexpr int kThreads = 256, kColumns = kRankedAtOnce;  // of a block of threads
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    LargestShape a;

    Grid grid() const { return {pieces(a.count, kColumns), a.rows, kThreads, sizeof(std::uint64_t) * kColumns}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const auto least = cta.template shared<std::uint64_t>(kColumns);
        const std::size_t y = static_cast<std::size_t>(cta.y());
        const float* const row = a.x + y * a.columns;
        const int kept = a.kept, first = cta.x() * kColumns;
        cta.each([&](int thread) {
            for (int i = thread; i < kColumns; i += kThreads) {
                const int at = first + i;
                if (at >= a.count) least.set(i, kNone);
                else if (a.ranks) least.set(i, value_at<std::uint64_t>(a.ranks + y * a.count + at));
                else least.set(i, rank_of(value_at<float>(row + at), at));
            }
        });
        // Of the first `size` places those without the bit `step` and their partners, i ^ mask, are put in order.
        const auto order = [&](int size, int step, int mask) {
            cta.sync();
            cta.each([&](int thread) {
                for (int pair = thread; pair < size / 2; pair += kThreads) {
                    const int i = pair + (pair & -step), other = i ^ mask;
                    const std::uint64_t one = least.get(i), two = least.get(other);
                    if (one <= two) continue;
                    least.set(i, two);
                    least.set(other, one);
                }
            });
        };
        const auto merge = [&](int size, int first_step) {
            for (int step = first_step; step > 0; step /= 2) order(size, step, step);
        };
        for (int run = 2; run <= kept; run *= 2) {
            order(kColumns, run / 2, run - 1);
            merge(kColumns, run / 4);
        }
        for (int half = kColumns / 2; half >= kept; half /= 2) {
            cta.sync();
            cta.each([&](int thread) {
                for (int i = thread; i < half; i += kThreads) {
                    const std::uint64_t one = least.get(i), two = least.get(half + (i ^ (kept - 1)));
                    least.set(i, one < two ? one : two);
                }
            });
            merge(half, kept / 2);
        }
        const bool is_last = a.count <= kColumns;
        std::uint64_t* const to = a.out + (y * pieces(a.count, kColumns) + cta.x()) * kept;
        cta.sync();
        cta.each([&](int thread) {
            for (int i = thread; i < kept; i += kThreads) {
                const std::uint64_t rank = least.get(i);
                const std::uint32_t index = static_cast<std::uint32_t>(rank);
                to[i] = !is_last || rank == kNone
                            ? rank
                            : static_cast<std::uint64_t>(bits_of(value_at<float>(row + index))) << 32 | index;
            }
        });
    }
};

}  // namespace karat::gpu
