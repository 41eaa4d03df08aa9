// How to multiply by quantised weights, measured before the numeric contract was chosen (docs/determinism.md): (a)
// scale each weight and run one chain over all columns, or (b) run a chain over a block's codes and scale its sum.
//
//   c++ -std=c++20 -O3 -march=native -ffp-contract=off -pthread -Icsrc benchmarks/arithmetic.cpp -o arithmetic
//   ./arithmetic [THREADS]
//
// Prototypes of equal care, on the lanes of csrc/simd/simd.h; panels of 64 rows, blocks packed as the comments say.
// Prints for each the best and the median of five runs.
#define KARAT_ISA_NAMESPACE prototype
#include "simd/simd.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

using namespace karat::prototype;

enum class Arithmetic { scaled_weight, block_sum };

constexpr int kGroups = 4, kRows = kGroups * kLanes;  // of a panel
constexpr std::size_t kColumns = 1792, kPanels = 2400, kPrefetch = 4608;

// 32 columns: 64 scales (f16), then words of eight 4-bit codes, [4][group][row].
struct Q4_0 { static constexpr std::size_t kColumns = 32, kBytes = 2 * kRows + 16 * kRows; };
// 256 columns: 64 scales (f16), 16 sub-blocks' scales (int8, [sub-block][row]), then for each 16 columns two words of
// low halves and one of two high bits, [3][group][row].
struct Q6_K { static constexpr std::size_t kColumns = 256, kBytes = 2 * kRows + 16 * kRows + 16 * 12 * kRows; };

constexpr float kCentred[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

void prefetch_block(const std::uint8_t* w, std::size_t bytes) {
    for (std::size_t line = 0; line < bytes; line += 64) prefetch(w + kPrefetch + line);
}

template <Arithmetic kHow>
void one_token(const std::uint8_t* w, const float* x, float* out, std::size_t panels, Q4_0) {
    const auto lut = make_lut<NibbleLut>(kCentred);
    for (std::size_t panel = 0; panel < panels; ++panel) {
        f32x16 sum[kGroups];
        for (f32x16& s : sum) s = zero();
        for (std::size_t k = 0; k < kColumns; k += Q4_0::kColumns, w += Q4_0::kBytes) {
            prefetch_block(w, Q4_0::kBytes);
            f32x16 scale[kGroups], part[kGroups];
            for (int g = 0; g < kGroups; ++g) scale[g] = load_f16(w + 32 * g), part[g] = zero();
            for (int word = 0; word < 4; ++word)
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) {
                    const f32x16 value = set1(x[k + static_cast<std::size_t>(8 * word + j)]);
                    for (int g = 0; g < kGroups; ++g) {
                        const f32x16 code =
                            look_up(lut, iload(w + 128 + (word * kGroups + g) * 64), j / 4, 4 * (j % 4));
                        if constexpr (kHow == Arithmetic::scaled_weight) sum[g] = fma(code * scale[g], value, sum[g]);
                        else part[g] = fma(code, value, part[g]);
                    }
                }
            if constexpr (kHow == Arithmetic::block_sum)
                for (int g = 0; g < kGroups; ++g) sum[g] = fma(part[g], scale[g], sum[g]);
        }
        for (int g = 0; g < kGroups; ++g) store(out + panel * kRows + static_cast<std::size_t>(g * kLanes), sum[g]);
    }
}

template <Arithmetic kHow>
void one_token(const std::uint8_t* w, const float* x, float* out, std::size_t panels, Q6_K) {
    for (std::size_t panel = 0; panel < panels; ++panel) {
        f32x16 sum[kGroups];
        for (f32x16& s : sum) s = zero();
        for (std::size_t k = 0; k < kColumns; k += Q6_K::kColumns, w += Q6_K::kBytes) {
            for (int sub = 0; sub < 16; ++sub) {
                const std::uint8_t *codes = w + 2 * kRows + 16 * kRows + sub * 12 * kRows,
                                   *scales = w + 2 * kRows + sub * kRows;
                prefetch_block(codes, 12 * kRows + kRows);
                f32x16 scale[kGroups], part[kGroups], lowest[kGroups];
                for (int g = 0; g < kGroups; ++g) {
                    float bytes[kLanes];
                    for (int l = 0; l < kLanes; ++l) bytes[l] = static_cast<std::int8_t>(scales[g * kLanes + l]);
                    scale[g] = load_f16(w + 32 * g) * load(bytes);
                    lowest[g] = zero() - scale[g] * set1(32);
                    part[g] = zero();
                }
                for (int word = 0; word < 2; ++word)
#pragma GCC unroll 8
                    for (int j = 0; j < 8; ++j) {
                        const f32x16 value = set1(x[k + static_cast<std::size_t>(16 * sub + 8 * word + j)]);
                        for (int g = 0; g < kGroups; ++g) {
                            const i32x16 low = (iload(codes + (word * kGroups + g) * 64) >> (4 * j)) & iset1(15);
                            const i32x16 high = iload(codes + (2 * kGroups + g) * 64) >> (2 * (8 * word + j));
                            const f32x16 code = to_float(low | ((high & iset1(3)) << 4));
                            if constexpr (kHow == Arithmetic::scaled_weight)
                                sum[g] = fma(fma(code, scale[g], lowest[g]), value, sum[g]);
                            else part[g] = fma(code - set1(32), value, part[g]);
                        }
                    }
                if constexpr (kHow == Arithmetic::block_sum)
                    for (int g = 0; g < kGroups; ++g) sum[g] = fma(part[g], scale[g], sum[g]);
            }
        }
        for (int g = 0; g < kGroups; ++g) store(out + panel * kRows + static_cast<std::size_t>(g * kLanes), sum[g]);
    }
}

// Six tokens at a time over chunks of 128 columns that are unpacked once; x is packed as [tokens / 6][columns][6].
template <Arithmetic kHow>
void tile(const std::uint8_t* w, const float* x, float* out, std::size_t tokens, float* chunk) {
    constexpr std::size_t kChunk = 128, kHeight = 6;
    const auto lut = make_lut<NibbleLut>(kCentred);
    float scales[kChunk / 32][kRows];
    for (std::size_t first = 0; first < kColumns; first += kChunk) {
        for (std::size_t block = 0; block < kChunk / 32; ++block, w += Q4_0::kBytes)
            for (int g = 0; g < kGroups; ++g) {
                const f32x16 scale = load_f16(w + 32 * g);
                store(&scales[block][g * kLanes], scale);
                for (int k = 0; k < 32; ++k) {
                    const f32x16 code =
                        look_up(lut, iload(w + 128 + (k / 8 * kGroups + g) * 64), k / 4 % 2, 4 * (k % 4));
                    float* at = chunk + (block * 32 + static_cast<std::size_t>(k)) * kRows + g * kLanes;
                    store(at, kHow == Arithmetic::scaled_weight ? code * scale : code);
                }
            }
        constexpr std::size_t kStep = kHow == Arithmetic::scaled_weight ? kChunk : 32;  // columns of a chain
        for (std::size_t token = 0; token < tokens; token += kHeight)
            for (std::size_t start = 0; start < kChunk; start += kStep) {
                f32x16 acc[kHeight][kGroups];
                const bool goes_on = kHow == Arithmetic::scaled_weight && first > 0;
                for (std::size_t t = 0; t < kHeight; ++t)
                    for (int g = 0; g < kGroups; ++g)
                        acc[t][g] = goes_on ? load(out + (token + t) * kRows + g * kLanes) : zero();
                for (std::size_t k = start; k < start + kStep; ++k) {
                    const float* values = x + token * kColumns + (first + k) * kHeight;
                    f32x16 weight[kGroups];
                    for (int g = 0; g < kGroups; ++g) weight[g] = load(chunk + k * kRows + g * kLanes);
                    for (std::size_t t = 0; t < kHeight; ++t)
                        for (int g = 0; g < kGroups; ++g) acc[t][g] = fma(weight[g], set1(values[t]), acc[t][g]);
                }
                for (std::size_t t = 0; t < kHeight; ++t)
                    for (int g = 0; g < kGroups; ++g) {
                        float* at = out + (token + t) * kRows + g * kLanes;
                        if constexpr (kHow == Arithmetic::block_sum) {
                            const f32x16 before = first + start > 0 ? load(at) : zero();
                            store(at, fma(acc[t][g], load(&scales[start / 32][g * kLanes]), before));
                        } else {
                            store(at, acc[t][g]);
                        }
                    }
            }
    }
}

// Runs work(thread) on all threads at once, five times.
void report(const std::string& name, double amount, const char* unit, int threads,
            const std::function<void(int)>& work) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (int run = 0; run < 5; ++run) {
        const auto start = Clock::now();
        std::vector<std::thread> others;
        for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
        work(0);
        for (std::thread& other : others) other.join();
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(seconds.begin(), seconds.end());
    std::printf("%-36s best %7.2f, median %7.2f %s\n", name.c_str(), amount / seconds[0] / 1e9,
                amount / seconds[2] / 1e9, unit);
}

template <class Fmt>
void report_one_token(const char* name, const std::uint8_t* w, const float* x, float* out, int threads) {
    const std::size_t each = kPanels / static_cast<std::size_t>(threads),
                      panel = kColumns / Fmt::kColumns * Fmt::kBytes;
    const double bytes = static_cast<double>(each * static_cast<std::size_t>(threads) * panel);
    const auto run = [&](auto how) {
        return [=](int i) {
            const std::size_t first = static_cast<std::size_t>(i) * each;
            one_token<decltype(how)::value>(w + first * panel, x, out + first * kRows, each, Fmt{});
        };
    };
    using A = std::integral_constant<Arithmetic, Arithmetic::scaled_weight>;
    using B = std::integral_constant<Arithmetic, Arithmetic::block_sum>;
    report(std::string(name) + ", one token, scaled weight", bytes, "GB/s", threads, run(A{}));
    report(std::string(name) + ", one token, block sum", bytes, "GB/s", threads, run(B{}));
}

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
    constexpr std::size_t kMostTokens = 510;
    const std::size_t bytes = kPanels * (kColumns / 256) * std::max(8 * Q4_0::kBytes, Q6_K::kBytes) + 2 * kPrefetch;
    constexpr std::size_t kHugePage = std::size_t{2} << 20;  // as the engine's own memory
    auto* w =
        static_cast<std::uint8_t*>(std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage));
#ifdef __linux__
    madvise(w, bytes, MADV_HUGEPAGE);
#endif
    for (std::size_t i = 0; i < bytes; ++i) w[i] = static_cast<std::uint8_t>(i * 37 >> 3) & 0x3b;  // finite scales
    std::vector<float> x(kColumns * kMostTokens, 0.01f), out(kPanels * kRows);
    report_one_token<Q4_0>("Q4_0", w, x.data(), out.data(), threads);
    report_one_token<Q6_K>("Q6_K", w, x.data(), out.data(), threads);
    for (const std::size_t tokens : {std::size_t{18}, kMostTokens}) {
        const std::size_t panels = tokens < 100 ? 200 : 8, panel = kColumns / 32 * Q4_0::kBytes;
        const double flops = 2.0 * threads * static_cast<double>(panels * kRows * kColumns * tokens);
        for (const Arithmetic how : {Arithmetic::scaled_weight, Arithmetic::block_sum})
            report("Q4_0, " + std::to_string(tokens) +
                       (how == Arithmetic::block_sum ? " tokens, block sum" : " tokens, scaled weight"),
                   flops, "GFLOP/s", threads, [&](int i) {
                       std::vector<float> chunk(128 * kRows), sums(tokens * kRows);
                       for (std::size_t p = 0; p < panels; ++p) {
                           const std::uint8_t* at = w + (static_cast<std::size_t>(i) * panels + p) * panel;
                           if (how == Arithmetic::block_sum)
                               tile<Arithmetic::block_sum>(at, x.data(), sums.data(), tokens, chunk.data());
                           else tile<Arithmetic::scaled_weight>(at, x.data(), sums.data(), tokens, chunk.data());
                       }
                   });
    }
}
