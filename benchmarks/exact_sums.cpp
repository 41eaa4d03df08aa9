// What integers could do for quantised weights: activations as 24-bit fixed point of each 32 columns, in three digits
// of 8 bits, and block sums that are exact whatever their order (benchmarks/log.md, 22 November; not what Karat
// computes).
//
//   c++ -std=c++20 -O3 -march=sapphirerapids -ffp-contract=off benchmarks/exact_sums.cpp -o exact_sums && ./exact_sums
//
// Q4_0 on one thread, packed as csrc/contract/packed.h says, 4864 rows of 896 columns: one token from memory and from
// the second-level cache, beside reading alone; 512 tokens by VNNI and by AMX, beside multiply-adds alone; and the
// error of one token beside that of a chain of float32 multiply-adds, both against float64.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

constexpr std::size_t kColumns = 896, kRows = 4864, kTokens = 512, kCopies = 24;  // copies: 60 MB
constexpr std::size_t kGroups = 4, kBlock = 18 * 16 * kGroups, kBlocks = kColumns / 32,
                      kPanels = kRows / (16 * kGroups);
constexpr std::size_t kPanel = kBlocks * kBlock, kMatrix = kPanels * kPanel, kChunk = 4;  // blocks of a chunk
constexpr int kBias = 8;

// 32 activations: digit[0] * 65536 + digit[1] * 256 + digit[2], times scale.
struct alignas(64) Fixed {
    std::int8_t digit[3][32];
    float scale;
    std::int32_t high, low;  // what the bias of the codes adds to the sums over the first two digits and over the third
    std::int32_t unused[5];
};
static_assert(sizeof(Fixed) == 128);

Fixed fixed(const float* x) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    int exponent;
    std::frexp(largest, &exponent);
    exponent -= 23;
    if (largest > std::ldexp(8355711.0f, exponent)) ++exponent;  // the most that three digits from -128 to 127 say
    Fixed out{};
    out.scale = std::ldexp(1.0f, exponent);
    for (int i = 0; i < 32; ++i) {
        const int value = static_cast<int>(std::nearbyint(std::ldexp(x[i], -exponent)));
        const int third = static_cast<std::int8_t>(value), rest = (value - third) / 256;
        const int second = static_cast<std::int8_t>(rest), first = (rest - second) / 256;
        out.digit[0][i] = static_cast<std::int8_t>(first);
        out.digit[1][i] = static_cast<std::int8_t>(second);
        out.digit[2][i] = static_cast<std::int8_t>(third);
        out.high -= kBias * (first * 256 + second);
        out.low -= kBias * third;
    }
    return out;
}

__m512i four(const std::int8_t* digits) {
    int bits;
    std::memcpy(&bits, digits, 4);
    return _mm512_set1_epi32(bits);
}

// sum + (first * 65536 + second * 256 + third) * scale, where `first` and `second` may have been added up before.
__m512 added(__m512 sum, __m512i first, __m512i second, __m512i third, __m512 scale) {
    const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(first, 8), second);
    const __m512 part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256), _mm512_cvtepi32_ps(third));
    return _mm512_fmadd_ps(part, scale, sum);
}

__m512 scale_of(const std::uint8_t* block, std::size_t group) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32 * group)));
}
__m512i word_of(const std::uint8_t* block, int word, std::size_t group) {
    return _mm512_loadu_si512(block + 32 * kGroups + (static_cast<std::size_t>(word) * kGroups + group) * 64);
}

// Two panels side by side; the first lines of a page come 2 KiB before.
__attribute__((noinline)) void one_token(const std::uint8_t* w, const Fixed* x, float* out, std::size_t panels) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (std::size_t panel = 0; panel < panels; panel += 2, w += kPanel) {
        __m512 sum[2 * kGroups] = {};
        for (std::size_t block = 0; block < kBlocks; ++block, w += kBlock)
#pragma GCC unroll 2
            for (std::size_t stream = 0; stream < 2; ++stream) {
                const std::uint8_t* const at = w + stream * kPanel;
                const Fixed& activations = x[block];
                const std::uint8_t* const ahead = at + 2048;
                const std::uint8_t* const page = ahead + (-reinterpret_cast<std::uintptr_t>(ahead) & 4095);
                if (static_cast<std::size_t>(page - ahead) < kBlock)
                    for (int line = 0; line < 16; ++line) _mm_prefetch(page + 64 * line, _MM_HINT_T1);
                __m512i parts[kGroups][3];
                for (auto& part : parts) {
                    part[0] = _mm512_setzero_si512();
                    part[1] = _mm512_set1_epi32(activations.high);
                    part[2] = _mm512_set1_epi32(activations.low);
                }
#pragma GCC unroll 4
                for (int word = 0; word < 4; ++word)
#pragma GCC unroll 4
                    for (std::size_t g = 0; g < kGroups; ++g) {
                        const __m512i both = word_of(at, word, g), low = _mm512_and_si512(both, nibble);
                        const __m512i high = _mm512_and_si512(_mm512_srli_epi32(both, 4), nibble);
                        for (int d = 0; d < 3; ++d) {
                            const std::int8_t* const digits = activations.digit[d] + 4 * word;
                            parts[g][d] = _mm512_dpbusd_epi32(parts[g][d], low, four(digits));
                            parts[g][d] = _mm512_dpbusd_epi32(parts[g][d], high, four(digits + 16));
                        }
                    }
                for (std::size_t g = 0; g < kGroups; ++g) {
                    __m512& total = sum[stream * kGroups + g];
                    const __m512 scale = _mm512_mul_ps(scale_of(at, g), _mm512_set1_ps(activations.scale));
                    total = added(total, parts[g][0], parts[g][1], parts[g][2], scale);
                }
            }
        for (std::size_t g = 0; g < 2 * kGroups; ++g) _mm512_storeu_ps(out + (panel * kGroups + g) * 16, sum[g]);
    }
}

// kChunk blocks of a panel as bytes [column / 4][group][row][4], less `bias`, and their scales [block][group][row].
struct Chunk {
    alignas(64) std::uint8_t codes[kChunk * 8][kGroups][64];
    alignas(64) float scales[kChunk][kGroups][16];

    void unpack(const std::uint8_t* w, int bias) {
        const __m512i nibble = _mm512_set1_epi8(15), less = _mm512_set1_epi8(static_cast<char>(bias));
        for (std::size_t block = 0; block < kChunk; ++block, w += kBlock)
            for (std::size_t g = 0; g < kGroups; ++g) {
                for (int word = 0; word < 4; ++word) {
                    const __m512i both = word_of(w, word, g), high = _mm512_srli_epi32(both, 4);
                    _mm512_store_si512(codes[block * 8 + word][g],
                                       _mm512_sub_epi8(_mm512_and_si512(both, nibble), less));
                    _mm512_store_si512(codes[block * 8 + 4 + word][g],
                                       _mm512_sub_epi8(_mm512_and_si512(high, nibble), less));
                }
                _mm512_store_ps(scales[block][g], scale_of(w, g));
            }
    }
};

using Sums = float[kGroups][16];  // of a token

// Two tokens by four groups; codes from 0 on.
__attribute__((noinline)) void vnni_tile(const Chunk& chunk, const Fixed* x, Sums* sums) {
    for (std::size_t block = 0; block < kChunk; ++block) {
        __m512i part[2][kGroups][3];
        for (std::size_t t = 0; t < 2; ++t)
            for (std::size_t g = 0; g < kGroups; ++g) {
                part[t][g][0] = _mm512_setzero_si512();
                part[t][g][1] = _mm512_set1_epi32(x[t * kBlocks + block].high);
                part[t][g][2] = _mm512_set1_epi32(x[t * kBlocks + block].low);
            }
#pragma GCC unroll 8
        for (std::size_t c = 0; c < 8; ++c)
            for (std::size_t t = 0; t < 2; ++t)
                for (int d = 0; d < 3; ++d) {
                    const __m512i digits = four(x[t * kBlocks + block].digit[d] + 4 * c);
                    for (std::size_t g = 0; g < kGroups; ++g)
                        part[t][g][d] = _mm512_dpbusd_epi32(part[t][g][d],
                                                            _mm512_load_si512(chunk.codes[block * 8 + c][g]), digits);
                }
        for (std::size_t t = 0; t < 2; ++t)
            for (std::size_t g = 0; g < kGroups; ++g) {
                const __m512 scale =
                    _mm512_mul_ps(_mm512_load_ps(chunk.scales[block][g]), _mm512_set1_ps(x[t * kBlocks + block].scale));
                const auto& [first, second, third] = part[t][g];
                _mm512_storeu_ps(sums[t][g], added(_mm512_loadu_ps(sums[t][g]), first, second, third, scale));
            }
    }
}

// Sixteen tokens by four groups; codes less their bias. Tiles 0 to 2 hold digits, 3 codes, 4 to 6 sums.
__attribute__((noinline)) void amx_tile(const Chunk& chunk, const Fixed* x, Sums* sums) {
    alignas(64) std::int32_t parts[2][3][16][16];
    constexpr std::size_t kSteps = kChunk * kGroups;
    const auto multiply = [&](std::size_t step) {
        const std::size_t block = step / kGroups, g = step % kGroups;
        if (g == 0) {
            _tile_loadd(0, x[block].digit[0], kBlocks * sizeof(Fixed));
            _tile_loadd(1, x[block].digit[1], kBlocks * sizeof(Fixed));
            _tile_loadd(2, x[block].digit[2], kBlocks * sizeof(Fixed));
        }
        _tile_loadd(3, chunk.codes[block * 8][g], sizeof chunk.codes[0]);
        _tile_zero(4);
        _tile_zero(5);
        _tile_zero(6);
        _tile_dpbssd(4, 0, 3);
        _tile_dpbssd(5, 1, 3);
        _tile_dpbssd(6, 2, 3);
        _tile_stored(4, parts[step % 2][0], 64);
        _tile_stored(5, parts[step % 2][1], 64);
        _tile_stored(6, parts[step % 2][2], 64);
    };
    multiply(0);
    for (std::size_t step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) multiply(step + 1);
        const std::size_t block = step / kGroups, g = step % kGroups;
        const auto& part = parts[step % 2];
#pragma GCC unroll 16
        for (std::size_t t = 0; t < 16; ++t) {
            const __m512 scale =
                _mm512_mul_ps(_mm512_load_ps(chunk.scales[block][g]), _mm512_set1_ps(x[t * kBlocks + block].scale));
            const auto of = [&](int digit) { return _mm512_load_si512(part[digit][t]); };
            _mm512_storeu_ps(sums[t][g], added(_mm512_loadu_ps(sums[t][g]), of(0), of(1), of(2), scale));
        }
    }
}

bool amx_begin() {
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) != 0) return false;
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {32, 32, 32, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 8, 16, 16, 16};
    } config;
    __asm__ volatile("" ::"r"(&config) : "memory");  // all of it is read, which compilers are not told
    _tile_loadconfig(&config);
    return true;
}

__attribute__((noinline)) float multiply_adds(long rounds) {
    __m512 chains[24];
    for (auto& chain : chains) chain = _mm512_set1_ps(0.5f);
    const __m512 half = _mm512_set1_ps(0.5f);
    for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 24
        for (auto& chain : chains) chain = _mm512_fmadd_ps(chain, half, half);
    float sum = 0;
    for (const auto& chain : chains) sum += _mm512_reduce_add_ps(chain);
    return sum;
}

// The median of nine runs, in seconds.
double seconds(const std::function<void()>& work) {
    std::vector<double> runs;
    for (int run = 0; run < 9; ++run) {
        const auto start = std::chrono::steady_clock::now();
        work();
        runs.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(runs.begin(), runs.end());
    return runs[4];
}

}  // namespace

int main() {
    const std::size_t bytes = kMatrix * kCopies;
    void* memory = mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_HUGEPAGE);
    auto* const w = static_cast<std::uint8_t*>(memory);
    std::srand(1);
    for (std::size_t i = 0; i < bytes; ++i) w[i] = static_cast<std::uint8_t>(std::rand() >> 7);
    for (std::size_t block = 0; block < bytes; block += kBlock)
        for (std::size_t row = 0; row < 64; ++row) {
            const auto scale = static_cast<std::uint16_t>(0x2c00 + std::rand() % 512);
            std::memcpy(w + block + 2 * row, &scale, 2);
        }
    std::vector<float> x(kColumns * kTokens), out(kRows);
    for (float& value : x) value = static_cast<float>(drand48() + drand48() + drand48() - 1.5);
    std::vector<Fixed> activations(kBlocks * kTokens);
    for (std::size_t i = 0; i < activations.size(); ++i) activations[i] = fixed(x.data() + 32 * i);

    one_token(w, activations.data(), out.data(), kPanels);
    double squares[2] = {}, sizes = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
        double exact = 0;
        float chain = 0;
        for (std::size_t block = 0; block < kBlocks; ++block) {
            const std::uint8_t* const at = w + row / 64 * kPanel + block * kBlock;
            std::uint16_t half;
            std::memcpy(&half, at + 2 * (row % 64), 2);
            const float scale = _cvtsh_ss(half);
            float part = 0;
            for (std::size_t k = 0; k < 32; ++k) {
                const int both = at[128 + k % 16 / 4 * 256 + row % 64 * 4 + k % 4];
                const int code = (k < 16 ? both & 15 : both >> 4) - kBias;
                exact += static_cast<double>(scale) * code * x[32 * block + k];
                part = std::fma(static_cast<float>(code), x[32 * block + k], part);
            }
            chain = std::fma(part, scale, chain);
        }
        squares[0] += (out[row] - exact) * (out[row] - exact);
        squares[1] += (chain - exact) * (chain - exact);
        sizes += exact * exact;
    }
    std::printf("error over size: fixed point %.2e, float32 chain %.2e\n", std::sqrt(squares[0] / sizes),
                std::sqrt(squares[1] / sizes));

    const auto rate = [](double amount, double time) { return amount / time / 1e9; };
    std::uint64_t sum = 0;
    const double reading = seconds([&] {
        __m512i a = _mm512_setzero_si512(), b = a;
        for (std::size_t i = 0; i < bytes / 2; i += 64) {
            a = _mm512_add_epi64(a, _mm512_loadu_si512(w + i));
            b = _mm512_add_epi64(b, _mm512_loadu_si512(w + bytes / 2 + i));
        }
        sum += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(a, b)));
    });
    const double decoding = seconds([&] {
        for (std::size_t copy = 0; copy < kCopies; ++copy)
            one_token(w + copy * kMatrix, activations.data(), out.data(), kPanels);
    });
    const double cached = seconds([&] {
        for (int i = 0; i < 400; ++i) one_token(w, activations.data(), out.data(), 8);
    });
    std::printf("one token: %.1f GB/s from memory (reading alone %.1f), %.1f from the second-level cache (%llu)\n",
                rate(static_cast<double>(bytes), decoding), rate(static_cast<double>(bytes), reading),
                rate(400.0 * 8 * kPanel, cached), static_cast<unsigned long long>(sum % 10));

    static Chunk chunk;
    static Sums sums[kTokens];
    const auto all = [&](int bias, std::size_t tokens, auto tile) {
        return seconds([&, bias, tokens] {
            for (std::size_t panel = 0; panel < kPanels; ++panel)
                for (std::size_t block = 0; block < kBlocks; block += kChunk) {
                    chunk.unpack(w + panel * kPanel + block * kBlock, bias);
                    for (std::size_t t = 0; t < kTokens; t += tokens)
                        tile(chunk, activations.data() + t * kBlocks + block, sums + t);
                }
        });
    };
    constexpr double kFlops = 2.0 * kRows * kColumns * kTokens;
    float kept = 0;
    const double peak = seconds([&] { kept += multiply_adds(1'000'000); });
    std::printf("512 tokens, GFLOP/s: multiply-adds alone %.0f, VNNI %.0f", rate(24.0 * 32e6, peak),
                rate(kFlops, all(0, 2, vnni_tile)));
    if (amx_begin()) std::printf(", AMX %.0f", rate(kFlops, all(kBias, 16, amx_tile)));
    std::printf(" (%g)\n", static_cast<double>(kept));
}
