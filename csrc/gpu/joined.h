// Two kernels as one launch: beside each other, where neither reads what the other writes, or one after the other.
#pragma once

#include "gpu/attention.h"
#include "gpu/cache.h"
#include "gpu/digits.h"
#include "gpu/elementwise.h"

namespace karat::gpu {

// Two kernels of items (ForEach), or one and such a pair.
template <class First, class Second>
struct Beside {
    static constexpr int kThreads = First::kThreads;
    static constexpr bool kIsShort = true;
    static_assert(Second::kThreads == kThreads);
    First first;
    Second second;

    KARAT_HOST KARAT_INLINE Grid grid() const {
        Grid all = first.grid();
        all.x += second.grid().x;
        return all;
    }
    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int blocks = first.grid().x;
        if (cta.x() < blocks) return first.run(cta);
        cta.count_x_from(blocks);
        second.run(cta);
    }
};

// K, turned by the angles of its positions, into the cache: an item is a pair.
template <class Fmt>
struct RopeStore {
    Rope rope;
    Store<Fmt, false> store;
    KARAT_INLINE void operator()(int i) const {
        const Rope::Pair pair = rope.turned(i);
        store.put(static_cast<int>(pair.at), pair.left);
        if (pair.is_pair) store.put(static_cast<int>(pair.at) + rope.half, pair.right);
    }
};

// A kernel, then the digits of the rows that its blocks of threads wrote: each block a piece of `piece` blocks of 32
// columns, in the order of x and then of y, from number `first` on.
template <class Kernel, int kDigits>
struct WithDigits {
    static constexpr int kThreads = Kernel::kThreads;
    static constexpr bool kIsShort = Kernel::kIsShort;
    Kernel kernel;
    Quantise<kDigits> digits;
    int first, piece, blocks_in_y;

    Grid grid() const { return kernel.grid(); }
    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        kernel.run(cta);
        cta.sync();
        const int number = cta.x() * blocks_in_y + cta.y(), all = digits.rows * (digits.columns / kColumnsOfDigits);
        cta.each([&](int thread) {
            for (int i = thread; i < piece; i += Kernel::kThreads)
                if (const int block = first + number * piece + i; block < all) digits.make_block(block);
        });
    }

private:
    static constexpr int kColumnsOfDigits = static_cast<int>(kDigitColumns);
};

}  // namespace karat::gpu
