// Compiled once for each instruction set: KARAT_ISA_NAMESPACE is set by the build.
#include "measure/limits.h"

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// As wide as the widest register; narrower builds take it in several.
typedef std::uint64_t Line __attribute__((vector_size(64), may_alias));
constexpr std::size_t kWords = sizeof(Line) / sizeof(std::uint64_t);
constexpr std::size_t kStepLines = kReadStep / sizeof(Line);

template <bool prefetched>
std::uint64_t read_streams(const std::uint64_t* data, std::size_t bytes, std::size_t streams, std::size_t ahead) {
    const std::size_t part = bytes / streams;
    const char* start = reinterpret_cast<const char*>(data);
    Line sums[kStepLines] = {};
    for (std::size_t at = 0; at < part; at += kReadStep)
        for (std::size_t stream = 0; stream < streams; ++stream) {
            const char* here = start + stream * part + at;
#pragma GCC unroll 4
            for (std::size_t i = 0; i < kStepLines; ++i) {
                if (prefetched) __builtin_prefetch(here + ahead + i * sizeof(Line));
                sums[i] ^= *reinterpret_cast<const Line*>(here + i * sizeof(Line));
            }
        }
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kStepLines; ++i)
        for (std::size_t word = 0; word < kWords; ++word) sum ^= sums[i][word];
    return sum;
}

std::uint64_t read(const std::uint64_t* data, std::size_t bytes, std::size_t streams, std::size_t ahead) {
    return ahead ? read_streams<true>(data, bytes, streams, ahead) : read_streams<false>(data, bytes, streams, 0);
}

// The number of chains of 16 lanes: latency times throughput of known machines, and at most what the registers hold.
#if defined(KARAT_AVX512)
constexpr int kChains = 24;
#elif defined(KARAT_AVX2) || defined(KARAT_NEON)
constexpr int kChains = 6;
#else
constexpr int kChains = 1;
#endif

float multiply_add(std::size_t rounds, float factor, float addend) {
    f32x16 chains[kChains], sum = zero();
    for (int i = 0; i < kChains; ++i) chains[i] = set1(static_cast<float>(i));
    const f32x16 factors = set1(factor), addends = set1(addend);
    for (std::size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 24
        for (int i = 0; i < kChains; ++i) chains[i] = fma(chains[i], factors, addends);
    for (int i = 0; i < kChains; ++i) sum = sum + chains[i];
    return fold(sum);
}

}  // namespace

const LimitKernels limit_kernels = {read, multiply_add, std::size_t{2} * kChains * kLanes};

}  // namespace karat::KARAT_ISA_NAMESPACE
