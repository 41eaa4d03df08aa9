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

// The number of chains is latency times throughput of known machines, and at most the number of registers less two
// constants.
#if defined(KARAT_AVX512)
typedef __m512 Vector;
constexpr int kVectorLanes = 16, kChains = 24;
#define KARAT_SPLAT(x) _mm512_set1_ps(x)
#define KARAT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define KARAT_STORE(p, v) _mm512_storeu_ps(p, v)
#elif defined(KARAT_AVX2)
typedef __m256 Vector;
constexpr int kVectorLanes = 8, kChains = 12;
#define KARAT_SPLAT(x) _mm256_set1_ps(x)
#define KARAT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define KARAT_STORE(p, v) _mm256_storeu_ps(p, v)
#elif defined(KARAT_NEON)
typedef float32x4_t Vector;
constexpr int kVectorLanes = 4, kChains = 24;
#define KARAT_SPLAT(x) vdupq_n_f32(x)
#define KARAT_FMA(a, b, c) vfmaq_f32(c, a, b)
#define KARAT_STORE(p, v) vst1q_f32(p, v)
#else
typedef float Vector;  // without an instruction for it this is a call of fmaf, as in the kernels
constexpr int kVectorLanes = 1, kChains = 8;
#define KARAT_SPLAT(x) (x)
#define KARAT_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define KARAT_STORE(p, v) (*(p) = (v))
#endif

float fma(std::size_t rounds, float factor, float addend) {
    Vector chains[kChains];
    for (int i = 0; i < kChains; ++i) chains[i] = KARAT_SPLAT(static_cast<float>(i));
    const Vector factors = KARAT_SPLAT(factor), addends = KARAT_SPLAT(addend);
    for (std::size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 24
        for (int i = 0; i < kChains; ++i) chains[i] = KARAT_FMA(chains[i], factors, addends);
    float lanes[kVectorLanes], sum = 0;
    for (int i = 0; i < kChains; ++i) {
        KARAT_STORE(lanes, chains[i]);
        for (int lane = 0; lane < kVectorLanes; ++lane) sum += lanes[lane];
    }
    return sum;
}

}  // namespace

const LimitKernels limit_kernels = {read, fma, std::size_t{2} * kChains * kVectorLanes};

}  // namespace karat::KARAT_ISA_NAMESPACE
