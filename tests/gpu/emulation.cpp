// Small kernels with and without mistakes, for the emulation to find (csrc/gpu/simt.h): prints what it said of each.
#include <cstdio>
#include <cstring>
#include <string>

#include "gpu/simt.h"

using namespace karat::gpu;

namespace {

enum class Mistake { none, no_barrier, early_read, overwritten, misaligned, misaligned_copy, outside, too_much, stale };

// out[i] = 2 * x[n - 1 - i]: through shared memory, in two phases.
struct Reverse {
    Mistake mistake;
    const float* x;
    float* out;
    static constexpr int kCount = 64;

    Grid grid() const { return {1, 1, kCount, mistake == Mistake::too_much ? 64 : 512}; }

    template <class Cta>
    void run(Cta& cta) const {
        const auto shared = cta.template shared<float>(kCount);
        PerThread<Cta, float> kept(cta);
        if (mistake == Mistake::early_read || mistake == Mistake::overwritten || mistake == Mistake::misaligned_copy) {
            cta.each([&](int thread) {
                if (thread < kCount / 4)
                    cta.copy16(shared, 4 * thread, x + 4 * thread + (mistake == Mistake::misaligned_copy));
            });
            cta.commit();
            if (mistake == Mistake::overwritten) cta.each([&](int thread) { shared.set(thread, 0); });
            if (mistake != Mistake::early_read) cta.template wait<0>();
            cta.sync();
        } else {
            cta.each([&](int thread) { shared.set(thread, value_at<float>(x + thread)); });
            if (mistake != Mistake::no_barrier) cta.sync();
        }
        cta.each([&](int thread) {
            if (mistake != Mistake::stale) kept[thread] = shared.get(kCount - 1 - thread);
            if (mistake == Mistake::misaligned) kept[thread] = shared.template get_as<U4>(1).v[0] * 1.0f;
            if (mistake == Mistake::outside) kept[thread] = shared.get(2 * kCount + thread);
        });
        cta.each([&](int thread) { out[thread] = kept[thread] + kept[thread]; });
    }
};

std::string said(Mistake mistake) {
    alignas(16) float x[Reverse::kCount + 4], out[Reverse::kCount];
    for (int i = 0; i < Reverse::kCount; ++i) x[i] = static_cast<float>(i);
    Device device(7);
    try {
        launch(device, Reverse{mistake, x, out});
    } catch (const std::exception& error) {
        return error.what();
    }
    for (int i = 0; i < Reverse::kCount; ++i)
        if (out[i] != 2 * x[Reverse::kCount - 1 - i]) return "wrong numbers";
    return "right";
}

}  // namespace

int main() {
    constexpr const char* names[] = {"none",        "no_barrier", "early_read",
                                     "overwritten", "misaligned", "misaligned_copy",
                                     "outside",     "too_much",   "stale"};
    for (int i = 0; i < static_cast<int>(std::size(names)); ++i)
        std::printf("%s: %s\n", names[i], said(static_cast<Mistake>(i)).c_str());
}
