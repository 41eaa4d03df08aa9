// What a multiply-add costs whose operand is a subnormal number, on one core: the reason why csrc/formats/subnormal.h
// is for some cores only. Run it on a machine with AVX2:
//
//     c++ -std=c++20 -O3 -march=native benchmarks/subnormal.cpp -o /tmp/subnormal && /tmp/subnormal
//
// Each line is the best of 15 runs of eight chains over codes of four bits, in nanoseconds for one instruction. Where
// the third line is far above the first, these cores leave subnormal numbers to microcode.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace {

#if defined(__AVX512F__)
using Floats = __m512;
constexpr const char* kName = "AVX-512";
Floats set1(float x) { return _mm512_set1_ps(x); }
Floats masked(const std::uint32_t* p, int bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(bits)));
}
Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Floats = __m256;
constexpr const char* kName = "AVX2";
Floats set1(float x) { return _mm256_set1_ps(x); }
Floats masked(const std::uint32_t* p, int bits) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(bits)));
}
Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#endif

constexpr int kChains = 8, kColumns = 32, kLanes = sizeof(Floats) / 4, kTimes = 20000;

__attribute__((noinline)) float sum_of(const std::uint32_t* words, const float* x, int bits) {
    Floats sums[kChains];
    for (Floats& sum : sums) sum = set1(0);
    for (int column = 0; column < kColumns; ++column)
        for (int i = 0; i < kChains; ++i)
            sums[i] = fma(masked(words + (column * kChains + i) * kLanes, bits), set1(x[column]), sums[i]);
    float all[kLanes], total = 0;
    for (const Floats& sum : sums) {
        std::memcpy(all, &sum, sizeof all);
        total += all[kLanes - 1];
    }
    return total;
}

void measure(const char* what, const std::uint32_t* words, const float* x, int bits) {
    double best = 1e9;
    float total = 0;
    for (int run = 0; run < 15; ++run) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kTimes; ++i) {
            total += sum_of(words, x, bits);
            asm volatile("" ::: "memory");
        }
        const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
        best = std::min(best, taken.count() / kTimes / (kColumns * kChains));
    }
    std::printf("%-60s %.3f ns   (%g)\n", what, best, static_cast<double>(total));
}

std::uint32_t words[kColumns * kChains * kLanes];
float x[kColumns];

}  // namespace

int main() {
    constexpr int kAll = -1, kNibble = 15 << 8;
    std::printf("%s\n", kName);
    const auto fill = [](auto word, float scale) {
        for (std::uint32_t i = 0; i < std::size(words); ++i) words[i] = word(i);
        for (int i = 0; i < kColumns; ++i) x[i] = scale * (1 + 0.1f * static_cast<float>(i));
    };
    const auto random = [](std::uint32_t i) { return i * 2654435761u; };
    fill(
        [](std::uint32_t i) {
            const float code = static_cast<float>(i % 16);
            std::uint32_t bits;
            std::memcpy(&bits, &code, sizeof bits);
            return bits;
        },
        1);
    measure("normal numbers, multiply-add", words, x, kAll);
    measure("normal numbers, mask and multiply-add", words, x, kAll << 1);
    fill([&](std::uint32_t i) { return random(i) & kNibble; }, std::ldexp(1.0f, 81));
    measure("codes as subnormal numbers, multiply-add", words, x, kAll);
    fill(random, std::ldexp(1.0f, 81));
    measure("codes as subnormal numbers, mask and multiply-add", words, x, kNibble);
}
