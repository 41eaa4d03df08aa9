// What a GPU has to answer, in under three minutes: nvcc only.
//
//     nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a -fmad=false driver.cu -o driver && ./driver [quick]
//
// 1. bits: the kernels against the contract's own loop on the host, on random and extreme numbers;
// 2. the chip: copy bandwidth, latency and rate of FFMA, rates of dp4a, dp2a, int to float, mma (bytes and bf16),
//    the cost of a node of a CUDA graph;
// 3. the kernels: GEMV as a share of the copy bandwidth, by shape; tiles in TFLOP/s-equivalent.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels.h"
#include "reference.h"

using namespace karat_gpu;

#define CHECK(call)                                                                               \
    do {                                                                                          \
        const cudaError_t error = (call);                                                         \
        if (error != cudaSuccess) {                                                               \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            std::exit(1);                                                                         \
        }                                                                                         \
    } while (0)

__global__ void __launch_bounds__(128) quantise_kernel(const __grid_constant__ QuantiseArgs a) {
    Cta cta;
    quantise_int16(cta, a);
}
__global__ void __launch_bounds__(128) spread_kernel(const __grid_constant__ SpreadArgs a) {
    Cta cta;
    spread_digits(cta, a);
}
template <int R, bool kLeaves>
__global__ void __launch_bounds__(256) gemv_kernel(const __grid_constant__ LinearArgs a) {
    Cta cta;
    q4_gemv<R, kLeaves>(cta, a);
}
__global__ void __launch_bounds__(256, 1) tile_bytes_kernel(const __grid_constant__ LinearArgs a) {
    Cta cta;
    q4_tile_bytes(cta, a);
}
__global__ void __launch_bounds__(256, 1) tile_bf16_kernel(const __grid_constant__ LinearArgs a) {
    Cta cta;
    q4_tile_bf16(cta, a);
}

__global__ void __launch_bounds__(256, 1) tile_wgmma_kernel(const __grid_constant__ LinearArgs a) {
    Cta cta;
    q4_tile_wgmma(cta, a);
}
__global__ void __launch_bounds__(128) spread_wgmma_kernel(const __grid_constant__ SpreadArgs a) {
    Cta cta;
    spread_for_wgmma(cta, a);
}
enum Kind { kBytes, kBf16, kWgmma };
const char* const kKinds[] = {"bytes", "bf16", "wgmma"};

// ---- numbers made on the device ------------------------------------------------------------------------------------
__device__ u32 hashed(u32 a) {
    a ^= a >> 16, a *= 0x7feb352du, a ^= a >> 15, a *= 0x846ca68bu;
    return a ^ a >> 16;
}
__global__ void random_words(u32* out, std::size_t count, u32 seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        out[i] = hashed(static_cast<u32>(i) * 2654435761u + seed);
}
// Halves of about 0.005 … 0.04, of both signs, where a wide panel has its scales.
__global__ void random_scales(u8* weight, std::size_t blocks, u32 seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < blocks * 64;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const u32 h = hashed(static_cast<u32>(i) + seed);
        reinterpret_cast<std::uint16_t*>(weight + i / 64 * 1152)[i % 64] =
            static_cast<std::uint16_t>(0x1c00 + h % 0x0c00 + (h >> 16 & 1) * 0x8000);
    }
}
__global__ void random_floats(float* out, std::size_t count, u32 seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const u32 h = hashed(static_cast<u32>(i) + seed);
        out[i] = (static_cast<float>(h & 0xffff) - 32768.0f) * (1.0f / 8192.0f) * (h >> 28 == 0 ? 8.0f : 1.0f);
    }
}

template <class T>
T* allocated(std::size_t count) {
    void* p;
    CHECK(cudaMalloc(&p, count * sizeof(T) + 256));
    return static_cast<T*>(p);
}
template <class F>
double seconds(const F& f, int repeats, int rounds = 5) {  // median
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    f(0);
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) {
        CHECK(cudaEventRecord(begin));
        for (int r = 0; r < repeats; ++r) f(i * repeats + r);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        all.push_back(ms / 1e3 / repeats);
    }
    CHECK(cudaGetLastError());
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}
int blocks_of(const LinearArgs& a, int r) {
    const int groups = (a.rows + 15) / 16;
    return groups / 4 * (2 / r) + groups % 4;
}
int shared_of(const LinearArgs& a, int r) { return a.columns / 32 * kDigitBytes + 2 * kChunk * 32 * r * 8 + 512; }
void gemv(const LinearArgs& a, int r, cudaStream_t stream = nullptr) {
    const int blocks = blocks_of(a, r), shared = shared_of(a, r);
    if (r == 1 && a.num_leaves == 8) gemv_kernel<1, true><<<blocks, 256, shared, stream>>>(a);
    if (r == 2 && a.num_leaves == 8) gemv_kernel<2, true><<<blocks, 256, shared, stream>>>(a);
    if (r == 1 && a.num_leaves == 1) gemv_kernel<1, false><<<blocks, 256, shared, stream>>>(a);
    if (r == 2 && a.num_leaves == 1) gemv_kernel<2, false><<<blocks, 256, shared, stream>>>(a);
}
void tile(const LinearArgs& a, Kind kind) {
    const dim3 grid((a.rows + 127) / 128, (a.tokens + 127) / 128, a.num_leaves);
    if (kind == kWgmma) tile_wgmma_kernel<<<grid, 256, kGroupStages * kGroupBlocks * kTileBytes>>>(a);
    else if (kind == kBf16) tile_bf16_kernel<<<grid, 256, kSpreadStages * 2 * kTileTokens * kSpreadBytes>>>(a);
    else tile_bytes_kernel<<<grid, 256, kByteStages * kTileTokens * kDigitBytes>>>(a);
}
void set_limits() {
    const int most = 200 * 1024;
    CHECK(cudaFuncSetAttribute(gemv_kernel<1, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(gemv_kernel<2, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(gemv_kernel<1, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(gemv_kernel<2, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(tile_bytes_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(tile_wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CHECK(cudaFuncSetAttribute(tile_bf16_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
}

// A layer with numbers of its own. `extreme`: every |q| is 32,639, every code -8 or 7.
struct Layer {
    LinearArgs a{};
    float* x;
    u8 *weight, *digits, *spread, *spread_wgmma;
    LinearArgs for_kind(Kind kind) const {
        LinearArgs with = a;
        if (kind == kWgmma) with.spread = spread_wgmma;
        return with;
    }
    Layer(int rows, int columns, int tokens, int leaves, u32 seed, bool extreme = false) {
        const std::size_t blocks = std::size_t(rows) / 64 * (columns / 32), padded = (tokens + 127) / 128 * 128;
        weight = allocated<u8>(blocks * 1152);
        x = allocated<float>(std::size_t(tokens) * columns);
        digits = allocated<u8>(std::size_t(tokens) * columns / 32 * kDigitBytes);
        spread = allocated<u8>(padded * columns / 32 * 128);
        spread_wgmma = allocated<u8>(padded * columns / 32 * 128);
        float* out = allocated<float>(std::size_t(tokens) * rows * leaves);
        CHECK(cudaMemset(out, 0xff, std::size_t(tokens) * rows * leaves * 4));
        random_words<<<1024, 256>>>(reinterpret_cast<u32*>(weight), blocks * 288, seed);
        random_scales<<<1024, 256>>>(weight, blocks, seed + 1);
        random_floats<<<1024, 256>>>(x, std::size_t(tokens) * columns, seed + 2);
        if (extreme) {
            std::vector<u8> w(blocks * 1152);
            std::vector<float> xs(std::size_t(tokens) * columns);
            CHECK(cudaMemcpy(w.data(), weight, w.size(), cudaMemcpyDeviceToHost));
            for (std::size_t i = 0; i < w.size(); ++i)
                if (i % 1152 >= 128) w[i] = seed % 2 ? 0 : (w[i] & 1 ? 0x0f : 0xf0);
            CHECK(cudaMemcpy(weight, w.data(), w.size(), cudaMemcpyHostToDevice));
            for (std::size_t i = 0; i < xs.size(); ++i)
                xs[i] = std::ldexp(32639.0f, int(i / 32 % 90) - 60) *
                        (seed % 2 || i * 2654435761u >> 31 & 1 ? 1.0f : -1.0f);
            CHECK(cudaMemcpy(x, xs.data(), xs.size() * 4, cudaMemcpyHostToDevice));
        }
        const int items = tokens * columns / 32, all = static_cast<int>(padded) * columns / 32;
        quantise_kernel<<<(items + 127) / 128, 128>>>({x, tokens, columns, digits});
        spread_kernel<<<(all + 127) / 128, 128>>>({digits, tokens, columns, spread});
        spread_wgmma_kernel<<<(all + 127) / 128, 128>>>({digits, tokens, columns, spread_wgmma});
        a = {weight, rows, columns, tokens, digits, spread, out, nullptr, nullptr, leaves, {}};
        for (int i = 0; i < leaves; ++i) a.leaf_ends[i] = (i + 1) * (columns / 32) / leaves * 32;
        CHECK(cudaDeviceSynchronize());
    }
    void release() {
        for (const void* p : {(const void*)weight, (const void*)x, (const void*)digits, (const void*)spread,
                              (const void*)spread_wgmma, (const void*)a.out})
            cudaFree(const_cast<void*>(p));
    }
};

int errors_of(const Layer& layer, const char* what, bool by_gemv) {
    const LinearArgs& a = layer.a;
    std::vector<u8> w(std::size_t(a.rows) / 64 * (a.columns / 32) * 1152);
    std::vector<float> x(std::size_t(a.tokens) * a.columns),
        out(std::size_t(a.tokens) * a.rows * (by_gemv ? 1 : a.num_leaves));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(w.data(), layer.weight, w.size(), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(x.data(), layer.x, x.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(out.data(), a.out, out.size() * 4, cudaMemcpyDeviceToHost));
    std::mt19937 random(7);
    int bad = 0;
    const int count = by_gemv ? a.rows : 3000;
    for (int i = 0; i < count; ++i) {
        const int row = by_gemv ? i : static_cast<int>(random() % a.rows),
                  token = by_gemv ? 0 : static_cast<int>(random() % a.tokens);
        float leaves[8];
        for (int leaf = 0; leaf < a.num_leaves; ++leaf) {
            const float sum = leaf_of_contract(w.data(), x.data() + std::size_t(token) * a.columns, a.columns, row,
                                               leaf ? a.leaf_ends[leaf - 1] / 32 : 0, a.leaf_ends[leaf] / 32);
            leaves[leaf] = sum;
            if (!by_gemv && std::memcmp(&sum, &out[(std::size_t(leaf) * a.tokens + token) * a.rows + row], 4)) ++bad;
        }
        if (by_gemv) {
            for (int n = a.num_leaves; n > 1; n /= 2)
                for (int j = 0; j < n / 2; ++j) leaves[j] = leaves[2 * j] + leaves[2 * j + 1];
            if (std::memcmp(&leaves[0], &out[std::size_t(token) * a.rows + row], 4)) ++bad;
        }
    }
    std::printf("  %-52s %s\n", what, bad ? "DIFFERENT" : "equal");
    if (bad) std::printf("    %d of %d\n", bad, count);
    return bad;
}

// ---- the chip -------------------------------------------------------------------------------------------------------
__global__ void fma_latency(float* out, long long* clocks, float a, float b) {
    float s = out[0];
    const long long begin = clock64();
#pragma unroll 64
    for (int i = 0; i < 4096; ++i) s = __fmaf_rn(s, a, b);
    *clocks = clock64() - begin;
    out[0] = s;
}
template <int kWhich>  // results a lane: 8 chains of `rounds`
__global__ void __launch_bounds__(256) rate(u32* out, int rounds, u32 b) {
    u32 s[8];
    float f[8];
    for (int j = 0; j < 8; ++j) s[j] = threadIdx.x + j, f[j] = threadIdx.x + j;
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if constexpr (kWhich == 0) f[j] = __fmaf_rn(f[j], 0.999f, 0.5f);
            if constexpr (kWhich == 1) s[j] = dot4(b, s[j], static_cast<int>(s[j]));
            if constexpr (kWhich == 2) s[j] = dot2<0>(b, s[j], static_cast<int>(s[j]));
            if constexpr (kWhich == 3) s[j] = __float_as_uint(__int2float_rn(static_cast<int>(s[j])));
            if constexpr (kWhich == 4) s[j] = (s[j] & b) ^ 0x0f0f0f0fu;
            if constexpr (kWhich == 5) s[j] = s[j] * 256 + b;
            if constexpr (kWhich == 6) f[j] = __fmaf_rn(__int2float_rn(static_cast<int>(s[j] += b)), 0.5f, f[j]);
        }
    u32 all = 0;
    for (int j = 0; j < 8; ++j) all ^= s[j] ^ __float_as_uint(f[j]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
template <bool kBytes>
__global__ void __launch_bounds__(256) mma_rate(u32* out, int rounds) {
    Warp warp{0};
    PerLane<U4> a;
    PerLane<U2> b;
    for (auto& v : a.value.v) v = 0x3f803f80u + threadIdx.x;
    for (auto& v : b.value.v) v = 0x3f803f80u + threadIdx.x;
    PerLane<i32[4]> ints[8] = {};
    PerLane<float[4]> floats[8] = {};
    for (int i = 0; i < rounds; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if constexpr (kBytes) warp.mma_bytes(ints[j], a, b);
            else warp.mma_bf16(floats[j], a, b);
        }
    u32 all = 0;
    for (int j = 0; j < 8; ++j)
        for (int r = 0; r < 4; ++r) all ^= static_cast<u32>(ints[j].value[r]) ^ __float_as_uint(floats[j].value[r]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
__global__ void nothing(float* x) {
    if (x && threadIdx.x > 4096) *x = 1;
}

struct Shape {
    const char* name;
    int rows, columns, leaves;
};
const Shape kShapes[] = {{"8B qkv", 6144, 4096, 1},   {"8B o", 4096, 4096, 8},        {"8B gate+up", 28672, 4096, 1},
                         {"8B down", 4096, 14336, 8}, {"8B head", 128256, 4096, 1},   {"0.5B qkv", 1152, 896, 1},
                         {"0.5B o", 896, 896, 8},     {"0.5B gate+up", 9728, 896, 1}, {"0.5B down", 896, 4864, 8}};

double copied_per_s() {  // bytes read and written
    const std::size_t big = std::size_t{1} << 31;
    u8 *from = allocated<u8>(big), *to = allocated<u8>(big);
    random_words<<<1024, 256>>>(reinterpret_cast<u32*>(from), big / 4, 1);
    const double copy = seconds([&](int) { CHECK(cudaMemcpyAsync(to, from, big, cudaMemcpyDeviceToDevice)); }, 3);
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    return 2.0 * big / copy;
}
template <class F>
cudaGraphExec_t graph_of(cudaStream_t stream, const F& body) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    body();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    return exec;
}
double seconds_of_graph(cudaGraphExec_t exec, cudaStream_t stream) {  // median
    std::vector<double> all;
    for (int i = 0; i < 7; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        for (int k = 0; k < 5; ++k) CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 5);
    }
    std::sort(all.begin(), all.end());
    return all[3];
}
// One token of a shape by each variant: more layers than the L2 holds, in one graph.
template <class Variants>
void measure_gemv(const Shape& s, const Variants& variants, cudaStream_t stream, double copied) {
    const std::size_t bytes = std::size_t(s.rows) * s.columns / 32 * 18;
    const int sets = static_cast<int>(std::min<std::size_t>(300, (std::size_t{400} << 20) / bytes + 2));
    std::vector<Layer> layers;
    for (int i = 0; i < sets; ++i) layers.emplace_back(s.rows, s.columns, 1, s.leaves, 100u + i);
    for (const auto& v : variants) {
        const auto exec = graph_of(stream, [&] {
            for (const Layer& l : layers) v.run(l.a, stream);
        });
        const double t = seconds_of_graph(exec, stream) / sets;
        std::printf("gemv %-13s %-26s %8.2f us %6.0f GB/s %5.1f %%\n", s.name, v.name, t * 1e6, bytes / t / 1e9,
                    100 * bytes / t / copied);
    }
    for (Layer& l : layers) l.release();
}
struct GemvVariant {
    const char* name;
    void (*run)(const LinearArgs&, cudaStream_t);
};
const GemvVariant kGemvs[] = {{"1 row a lane", [](const LinearArgs& a, cudaStream_t s) { gemv(a, 1, s); }},
                              {"2 rows a lane", [](const LinearArgs& a, cudaStream_t s) { gemv(a, 2, s); }}};

int main(int argc, char** argv) {
    const bool quick = argc > 1 && !std::strcmp(argv[1], "quick");
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    std::printf("%s, %d SMs, %d MB L2\n", p.name, p.multiProcessorCount, p.l2CacheSize >> 20);
    set_limits();
    const int sms = p.multiProcessorCount;

    std::printf("bits\n");
    int bad = 0;
    for (const int extreme : {0, 1, 2}) {
        for (const int leaves : {1, 8}) {
            Layer one(256, 4096 + 32, 1, leaves, 10 + extreme * 3, extreme > 0);
            for (const int r : {1, 2}) {
                CHECK(cudaMemset(one.a.out, 0xff, 256 * sizeof(float)));
                gemv(one.a, r);
                char what[80];
                std::snprintf(what, sizeof what, "gemv, %d rows a lane, %d leaves%s", r, leaves,
                              extreme ? ", extreme" : "");
                bad += errors_of(one, what, true);
            }
            one.release();
            Layer many(256, 1024 + 32, 200, leaves, 11 + extreme * 3, extreme > 0);
            for (const Kind kind : {kBytes, kBf16, kWgmma}) {
                CHECK(cudaMemset(many.a.out, 0xff, std::size_t(many.a.tokens) * many.a.rows * leaves * 4));
                tile(many.for_kind(kind), kind);
                char what[80];
                std::snprintf(what, sizeof what, "tile by %s, %d leaves%s", kKinds[kind], leaves,
                              extreme ? ", extreme" : "");
                bad += errors_of(many, what, false);
            }
            many.release();
        }
    }
    std::printf("bits: %s\n", bad ? "DIFFERENT" : "all equal");
    if (quick) return bad != 0;

    std::printf("chip\n");
    const double copied = copied_per_s();
    std::printf("  copy %.0f GB/s, read and written\n", copied / 1e9);
    float* f = allocated<float>(1 << 24);
    long long* clocks = allocated<long long>(1);
    fma_latency<<<1, 32>>>(f, clocks, 0.5f, 1.0f);
    fma_latency<<<1, 32>>>(f, clocks, 0.5f, 1.0f);
    long long c;
    CHECK(cudaMemcpy(&c, clocks, 8, cudaMemcpyDeviceToHost));
    std::printf("  FFMA latency %.2f clocks\n", c / 4096.0);
    const int rounds = 4096, grid = sms * 8;
    u32* sink = allocated<u32>(std::size_t(grid) * 256);
    const auto per_clock = [&](const char* what, auto kernel, double ops) {
        const double s = seconds([&](int) { kernel(); }, 2);
        std::printf("  %-32s %7.2f T/s, %.0f a clock and SM at 1.755 GHz\n", what, ops / s / 1e12,
                    ops / s / sms / 1.755e9);
    };
    const double lanes = double(grid) * 256 * rounds * 8;
    per_clock("FFMA", [&] { rate<0><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("dp4a", [&] { rate<1><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("dp2a", [&] { rate<2><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("int to float", [&] { rate<3><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("logic", [&] { rate<4><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("times 256 plus", [&] { rate<5><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    per_clock("add, int to float, FFMA", [&] { rate<6><<<grid, 256>>>(sink, rounds, 3); }, lanes);
    const double warps = double(grid) * 8 * 1024 * 8;
    per_clock("mma m16n8k32 bytes, MAC", [&] { mma_rate<true><<<grid, 256>>>(sink, 1024); }, warps * 16 * 8 * 32);
    per_clock("mma m16n8k16 bf16, MAC", [&] { mma_rate<false><<<grid, 256>>>(sink, 1024); }, warps * 16 * 8 * 16);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const auto empty = graph_of(stream, [&] {
        for (int i = 0; i < 300; ++i) nothing<<<sms, 128, 0, stream>>>(nullptr);
    });
    std::printf("  a graph of 300 empty kernels: %.2f us a node\n", seconds_of_graph(empty, stream) / 300 * 1e6);

    std::printf("gemv, Q4_0 x int16, one token: share of the copy bandwidth (weights alone)\n");
    for (const Shape& s : kShapes) measure_gemv(s, kGemvs, stream, copied);
    std::printf("tiles, Q4_0 x int16, TFLOP/s-equivalent (2 x rows x columns x tokens)\n");
    for (const Shape& s : {Shape{"8B gate+up", 28672, 4096, 1}, Shape{"8B down", 4096, 14336, 8},
                           Shape{"8B qkv", 6144, 4096, 1}, Shape{"0.5B gate+up", 9728, 896, 1}})
        for (const int tokens : {128, 512, 2048}) {
            Layer l(s.rows, s.columns, tokens, s.leaves, 5);
            for (const Kind kind : {kBytes, kBf16, kWgmma}) {
                const LinearArgs args = l.for_kind(kind);
                const double t = seconds([&](int) { tile(args, kind); }, 5);
                std::printf("  %-14s %5d tokens, by %-5s %9.1f us  %6.1f\n", s.name, tokens, kKinds[kind], t * 1e6,
                            2.0 * s.rows * s.columns * tokens / t / 1e12);
            }
            l.release();
        }
    return bad != 0;
}
