// Small kernels with and without mistakes, for the emulation to find (csrc/gpu/simt.h): prints what it said of each.
#include <cstdio>
#include <cstring>
#include <string>

#include "gpu/simt.h"

using namespace karat::gpu;

namespace {

enum class Mistake {
    none,
    no_barrier,
    early_read,
    overwritten,
    misaligned,
    misaligned_copy,
    outside,
    too_much,
    too_many,
    stale,
    no_mistake_in_a_product,
    inexact
};

// out[i] = 2 * x[n - 1 - i]: through shared memory, in two phases.
struct Reverse {
    Mistake mistake;
    const float* x;
    float* out;
    static constexpr int kCount = 64, kThreads = kCount;

    Grid grid() const {
        return {1, 1, mistake == Mistake::too_many ? kCount + 1 : kCount, mistake == Mistake::too_much ? 64 : 512};
    }

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

// out = rows · tokens + begin, on tensor cores: 16 rows and 8 tokens of 16 bytes.
struct Multiply {
    const std::uint32_t *rows, *tokens;
    float begin, *out;  // [16, 8]
    static constexpr int kThreads = 32;

    Grid grid() const { return {1, 1, kThreads, 0}; }

    template <class Cta>
    void run(Cta& cta) const {
        struct Halves { FourHalves row, row_8_on, token; };
        struct Sums { float v[4]; };
        PerThread<Cta, Halves> halves(cta);
        PerThread<Cta, Sums> sums(cta);
        cta.each([&](int thread) {
            halves[thread] = {halves_of_bytes<0>(rows[thread]), halves_of_bytes<0>(rows[32 + thread]),
                              halves_of_bytes<128>(tokens[thread])};
            sums[thread] = {{begin, begin, begin, begin}};
        });
        cta.multiply([&](int thread) -> Product {
            const Halves& own = halves[thread];
            return {own.row, own.row_8_on, own.token, sums[thread].v};
        });
        cta.each([&](int thread) {
            for (int i = 0; i < 4; ++i) out[(thread / 4 + i / 2 * 8) * 8 + thread % 4 * 2 + i % 2] = sums[thread].v[i];
        });
    }
};

std::string said_of_product(float begin) {
    std::uint8_t rows[16][16], tokens[8][16];
    for (int i = 0; i < 16 * 16; ++i) rows[i / 16][i % 16] = static_cast<std::uint8_t>(255 - i);
    for (int i = 0; i < 8 * 16; ++i) tokens[i / 16][i % 16] = static_cast<std::uint8_t>(7 * i + 1);
    std::uint32_t words[24][4];
    std::memcpy(words[0], rows, sizeof rows);
    std::memcpy(words[16], tokens, sizeof tokens);
    float out[16][8];
    Device device(7);
    try {
        launch(device, Multiply{words[0], words[16], begin, out[0]});
    } catch (const std::exception& error) {
        return error.what();
    }
    for (int row = 0; row < 16; ++row)
        for (int token = 0; token < 8; ++token) {
            int sum = static_cast<int>(begin);
            for (int k = 0; k < 16; ++k) sum += rows[row][k] * (tokens[token][k] - 128);
            if (out[row][token] != static_cast<float>(sum)) return "wrong numbers";
        }
    return "right";
}

std::string said(Mistake mistake) {
    if (mistake == Mistake::no_mistake_in_a_product) return said_of_product(1000);
    if (mistake == Mistake::inexact) return said_of_product(0x1p24f);
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
    constexpr const char* names[] = {"none",       "no_barrier",      "early_read", "overwritten",
                                     "misaligned", "misaligned_copy", "outside",    "too_much",
                                     "too_many",   "stale",           "product",    "inexact"};
    for (int i = 0; i < static_cast<int>(std::size(names)); ++i)
        std::printf("%s: %s\n", names[i], said(static_cast<Mistake>(i)).c_str());
}
