// Layers of one x as one launch.
#pragma once

#include "gpu/launches.h"
#include "gpu/simt.h"

namespace karat::gpu {

// Up to kMostBeside kernels of one type and as many blocks in y. The blocks of the first come first.
template <class Kernel>
struct SideBySide {
    static constexpr int kThreads = Kernel::kThreads, kBlocksOfCore = Kernel::kBlocksOfCore;
    Kernel parts[kMostBeside];
    int ends[kMostBeside];  // of their blocks, counted over all
    int count;

    Grid grid() const {
        Grid all = parts[0].grid();
        all.x = ends[count - 1];
        return all;
    }
    template <class Cta>
    KARAT_INLINE void ahead(Cta& cta) const {
        const int part = part_of(cta), first = part ? ends[part - 1] : 0;
        cta.count_x_from(first);
        ahead_of(parts[part], cta);
        cta.count_x_from(-first);
    }
    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int part = part_of(cta);
        if (part > 0) cta.count_x_from(ends[part - 1]);
        parts[part].run(cta);
    }

private:
    template <class Cta>
    KARAT_INLINE int part_of(const Cta& cta) const {
        int part = 0;
        while (part + 1 < count && cta.x() >= ends[part]) ++part;
        return part;
    }
};

// A kernel is made of each layer, then of the arguments that all have.
template <class Kernel, class... Arguments>
void launch_layers(Device& device, const LinearShape* layers, int count, const Arguments&... arguments) {
    SideBySide<Kernel> all{};
    all.count = count;
    for (int i = 0, blocks = 0; i < count; ++i) {
        all.parts[i] = Kernel{layers[i], arguments...};
        all.ends[i] = blocks += all.parts[i].grid().x;
    }
    launch(device, all);
}

}  // namespace karat::gpu
