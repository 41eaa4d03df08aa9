// Variants of the two kernels that matter, beside the prototype's (driver.cu): bits first, then speed. sm_90a only.
//
//     nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a -fmad=false study.cu -o study && ./study [quick]
#include <map>

#define main driver_main
#include "driver.cu"
#undef main

SIMT u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void barrier_init(u32 at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 at, int phase) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
        "again;\ndone:\n}" ::"r"(at),
        "r"(phase)
        : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void bulk(u32 to, const void* from, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void wgmma(float (&d)[64], const u32 (&a)[4], std::uint64_t descriptor, int add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
        "%57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(add));
#endif
}

// A tile's block of digits as wgmma reads it with a swizzle of 128 bytes: a token is a row of 128 bytes (plane, step,
// half), the 16-byte pieces of row r lie at piece ^ (r % 8).
__global__ void __launch_bounds__(128) spread_swizzled(const __grid_constant__ SpreadArgs a) {
    const int item = blockIdx.x * 128 + threadIdx.x, blocks = a.columns / kBlock;
    const int padded = (a.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
    if (item >= padded * blocks) return;
    const int token = item % padded, block = item / padded, in = token % kTileTokens;
    const u8* const from = a.digits + place_of_block(a.tokens, a.columns, token < a.tokens ? token : 0, block);
    const float power = float_of(*reinterpret_cast<const u32*>(from));
    u8* const row = a.out +
                    (static_cast<std::size_t>(block) * (padded / kTileTokens) + token / kTileTokens) * kTileBytes +
                    in * 128;
    for (int part = 0; part < 8; ++part) {
        const int plane = part / 4, pair = part % 4;
        U4 words;
        for (int t = 0; t < 4; ++t) {
            const int column = 4 * t + pair % 2 * 16 + pair / 2;
            const auto number = [&](int c) {
                const i32 digit = static_cast<std::int8_t>(from[kHeader + 32 * plane + c]);
                return bits_of(float_of_int(plane == 0 ? 256 * digit : digit) * power) >> 16;
            };
            words.v[t] = token < a.tokens ? number(column) | number(column + 2) << 16 : 0;
        }
        *reinterpret_cast<U4*>(row + (part ^ in % 8) * 16) = words;
    }
}

constexpr int kPanelBytes = kPanelRows * kBlockBytes;
template <int kGroups>
__host__ __device__ constexpr int stage_bytes() {
    return kTileBytes + (kGroups * kPanelBytes + 1023) / 1024 * 1024;
}
template <int kGroups>
__host__ __device__ constexpr int stages() {
    return (227 * 1024 - 512) / stage_bytes<kGroups>();
}
__device__ __forceinline__ void wgmma(float (&d)[32], const u32 (&a)[4], std::uint64_t descriptor, int add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
        "%34, %35}, %36, p, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(add));
#endif
}

template <int N>
__device__ __forceinline__ void hold_all(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold_codes(u32 (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(d[i][j])::"memory");
}
// kGroups warpgroups with a panel each. One more warp does nothing but bring blocks of 32 columns by bulk copies: the
// digits (16 KB) and the panels (1,152 bytes each). Codes of the next block are made while the tensor cores work on
// this one. kHalves: two accumulators of 64 tokens, so that a warpgroup keeps the tensor cores busy while it adds.
template <int kGroups, bool kHalves>
__global__ void __launch_bounds__(kGroups * 128 + 128, 1) tile_fed(const __grid_constant__ LinearArgs a) {
    constexpr int kStages = stages<kGroups>(), kStage = stage_bytes<kGroups>();
    const int row_tile = blockIdx.y, token_tile = blockIdx.x;
    const int start = blockIdx.z ? a.leaf_ends[blockIdx.z - 1] / kBlock : 0, end = a.leaf_ends[blockIdx.z] / kBlock,
              count = end - start;
    const int tiles = (a.tokens + kTileTokens - 1) / kTileTokens;
    unsigned char* const memory = simt_shared;
    const u32 full = shared_address(memory + kStages * kStage), empty = full + 8 * kStages,
              base = shared_address(memory);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, kGroups * 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == kGroups) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread == 0)
            for (int i = 0; i < count; ++i) {
                const int stage = i % kStages;
                const u32 barrier = full + 8 * stage, to = base + stage * kStage;
                if (i >= kStages) barrier_wait(empty + 8 * stage, (i / kStages - 1) & 1);
                barrier_expect(barrier, kTileBytes + kGroups * kPanelBytes);
                const u8* const digits =
                    a.spread + (static_cast<std::size_t>(start + i) * tiles + token_tile) * kTileBytes;
                bulk(to, digits, kTileBytes, barrier);
#pragma unroll
                for (int g = 0; g < kGroups; ++g) {
                    int panel = row_tile * kGroups + g;
                    panel = panel < a.wide() ? panel : a.wide() - 1;
                    bulk(to + kTileBytes + g * kPanelBytes,
                         a.weight + (static_cast<std::size_t>(panel) * a.blocks() + start + i) * kPanelBytes,
                         kPanelBytes, barrier);
                }
            }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kGroups == 3 ? 152 : 208));
        const int panel = row_tile * kGroups + group, row = thread / 32 * 16 + lane / 4 * 2;
        const auto codes_of = [&](int i, u32(&codes)[2][4], float& low, float& high) {
            const int stage = i % kStages;
            barrier_wait(full + 8 * stage, i / kStages & 1);
            const unsigned char* const w = memory + stage * kStage + kTileBytes + group * kPanelBytes;
            const U2 words = *reinterpret_cast<const U2*>(w + 2 * kPanelRows + 4 * (kPanelRows * (lane % 4) + row));
            const u32 scales = *reinterpret_cast<const u32*>(w + 2 * row);
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int pair = 0; pair < 4; ++pair)
                    codes[pair / 2][r + pair % 2 * 2] =
                        minus_136((words.v[r] >> (4 * pair) & 0x000f000fu) | 0x43004300u);
            low = float_of_half(scales), high = float_of_half(scales >> 16);
        };
        const auto descriptor = [&](int i, int step, int half) {
            return static_cast<std::uint64_t>((base + i % kStages * kStage + step * 32 + half * 8192 & 0x3ffff) >> 4) |
                   static_cast<std::uint64_t>(1) << 16 | static_cast<std::uint64_t>(1024 >> 4) << 32 |
                   static_cast<std::uint64_t>(1) << 62;
        };
        const auto release = [&](int i) {
            __syncwarp();  // all lanes have read their words
            if (lane == 0) {
                const u32 at = empty + 8 * (i % kStages);
                barrier_arrive(at);
            }
        };
        float sums[64] = {};
        u32 codes[2][2][4];
        float low[2], high[2];
        if (count) codes_of(0, codes[0], low[0], high[0]);
        if constexpr (!kHalves) {
            float acc[64];
            for (int first = 0; first < count; first += 2)
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const int i = first + u;
                    if (i >= count) break;
                    hold_all(acc);
                    hold_codes(codes[u]);
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                    for (int s = 0; s < 4; ++s) wgmma(acc, codes[u][s % 2], descriptor(i, s, 0), s > 0);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    if (i + 1 < count) codes_of(i + 1, codes[1 - u], low[1 - u], high[1 - u]);
                    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                    hold_all(acc);
                    hold_codes(codes[u]);
                    release(i);
#pragma unroll
                    for (int r = 0; r < 64; ++r) sums[r] = fused(acc[r], r & 2 ? high[u] : low[u], sums[r]);
                }
        } else {
            float one[32] = {}, two[32] = {};
            const auto begin = [&](float (&acc)[32], int i, u32(&c)[2][4], int half) {
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int s = 0; s < 4; ++s) wgmma(acc, c[s % 2], descriptor(i, s, half), s > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            };
            const auto step = [&](int i, u32(&now)[2][4], float l, float h, u32(&next)[2][4], float& next_l,
                                  float& next_h) {
                codes_of(i + 1, next, next_l, next_h);
                hold_codes(next);
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                hold_all(one);
#pragma unroll
                for (int r = 0; r < 32; ++r) sums[r] = fused(one[r], r & 2 ? h : l, sums[r]);
                begin(one, i + 1, next, 0);
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                hold_all(two);
                release(i);
#pragma unroll
                for (int r = 0; r < 32; ++r) sums[32 + r] = fused(two[r], r & 2 ? h : l, sums[32 + r]);
                begin(two, i + 1, next, 1);
            };
            const auto last = [&](int i, float l, float h) {
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                hold_all(one), hold_all(two);
                release(i);
#pragma unroll
                for (int r = 0; r < 32; ++r) sums[r] = fused(one[r], r & 2 ? h : l, sums[r]);
#pragma unroll
                for (int r = 0; r < 32; ++r) sums[32 + r] = fused(two[r], r & 2 ? h : l, sums[32 + r]);
            };
            if (count) {
                begin(one, 0, codes[0], 0), begin(two, 0, codes[0], 1);
                int i = 0;
                for (; i + 2 < count; i += 2) {
                    step(i, codes[0], low[0], high[0], codes[1], low[1], high[1]);
                    step(i + 1, codes[1], low[1], high[1], codes[0], low[0], high[0]);
                }
                if (i + 1 < count) {
                    step(i, codes[0], low[0], high[0], codes[1], low[1], high[1]);
                    last(i + 1, low[1], high[1]);
                } else last(i, low[0], high[0]);
            }
        }
        if (panel < a.wide()) {
            float* const out = a.out + static_cast<std::size_t>(blockIdx.z) * a.tokens * a.rows;
#pragma unroll
            for (int r = 0; r < 64; r += 4)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int token = token_tile * kTileTokens + r / 4 * 8 + thread % 4 * 2 + c;
                    if (token >= a.tokens) continue;
                    *reinterpret_cast<float2*>(out + static_cast<std::size_t>(token) * a.rows + panel * kPanelRows +
                                               row) = {sums[r + c], sums[r + c + 2]};
                }
        }
    }
}
template <int kGroups, bool kHalves>
void fed_variant(const LinearArgs& a) {
    const auto kernel = tile_fed<kGroups, kHalves>;
    const int shared = stages<kGroups>() * (stage_bytes<kGroups>() + 16);
    static bool first = true;
    if (first) {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        first = false;
    }
    int rows = (a.rows / kPanelRows + kGroups - 1) / kGroups;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((a.tokens + 127) / 128, rows, a.num_leaves);
    config.blockDim = kGroups * 128 + 128;
    config.dynamicSmemBytes = shared;
    CHECK(cudaLaunchKernelEx(&config, kernel, a));
}

// One token: each warp has a ring of kRing blocks of its own in shared memory (32 rows, 576 bytes), filled by 16-byte
// copies that begin before the activations are waited for.
constexpr int kRing = 16;
template <bool kLeaves>
__global__ void __launch_bounds__(256) gemv_ring(const __grid_constant__ LinearArgs a) {
    constexpr int kPiece = 576, kGroupsAhead = kRing / 4;
    const int blocks = a.blocks(), panel = blockIdx.x / 2, half = blockIdx.x % 2 * 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u8* const strip = a.weight + static_cast<std::size_t>(panel) * blocks * kPanelBytes;
    u8* const x = simt_shared;
    u8* const ring = x + blocks * kDigitBytes + warp * kRing * kPiece;
    float* const parts = reinterpret_cast<float*>(x + blocks * kDigitBytes + 8 * kRing * kPiece);  // [2][32][32]
    std::uint16_t* const scales = reinterpret_cast<std::uint16_t*>(parts + 2 * 32 * 32);
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int begin = kLeaves ? (warp ? a.leaf_ends[warp - 1] / kBlock : 0) : warp,
              end = kLeaves ? a.leaf_ends[warp] / kBlock : blocks, step = kLeaves ? 1 : 8;
    const auto issue = [&](int group) {
#pragma unroll
        for (int i = 0; i < 5; ++i) {
            const int piece = i * 32 + lane, in = piece / 36, p = piece % 36, block = begin + (group * 4 + in) * step;
            if (in < 4 && block < end) {
                const u8* const from =
                    strip + static_cast<std::size_t>(block) * kPanelBytes +
                    (p < 4 ? 2 * half + 16 * p
                           : 2 * kPanelRows + 4 * (kPanelRows * ((p - 4) / 8) + half) + 16 * ((p - 4) % 8));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                 shared_address(ring + ((group % kGroupsAhead) * 4 + in) * kPiece + 16 * p)),
                             "l"(from));
            }
        }
        asm volatile("cp.async.commit_group;");
    };
#pragma unroll
    for (int g = 0; g < kGroupsAhead; ++g) issue(g);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int i = threadIdx.x; i < blocks * kDigitBytes / 16; i += 256)
        reinterpret_cast<uint4*>(x)[i] = __ldcg(reinterpret_cast<const uint4*>(a.digits) + i);
    __syncthreads();
    const auto part_of = [&](const u8* from, int block) {
        const u8* const d = x + block * kDigitBytes;
        const U4 head = *reinterpret_cast<const U4*>(d);
        i32 first = 0, last = -8 * (static_cast<i32>(head.v[1]) + static_cast<i32>(head.v[2]));
        U4 digits[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) digits[j] = *reinterpret_cast<const U4*>(d + kHeader + 16 * j);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const u32 word = *reinterpret_cast<const u32*>(from + 64 + 128 * c + 4 * lane), low = word & 0x0f0f0f0fu,
                      high = word >> 4 & 0x0f0f0f0fu;
            first = dot4(digits[0].v[c], low, first), first = dot4(digits[1].v[c], high, first);
            last = dot4(digits[2].v[c], low, last), last = dot4(digits[3].v[c], high, last);
        }
        return float_of_int(first * 256 + last);
    };
    const auto power_of = [&](int block) { return *reinterpret_cast<const float*>(x + block * kDigitBytes); };
    if constexpr (kLeaves) {
        float sum = 0;
        for (int g = 0; begin + 4 * g < end; ++g) {
            asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsAhead - 1) : "memory");
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int block = begin + 4 * g + i;
                if (block >= end) break;
                const u8* const from = ring + ((g % kGroupsAhead) * 4 + i) * kPiece;
                sum = fused(part_of(from, block),
                            float_of_half(*reinterpret_cast<const std::uint16_t*>(from + 2 * lane)) * power_of(block),
                            sum);
            }
            __syncwarp();
            issue(g + kGroupsAhead);
        }
        parts[warp * 32 + lane] = sum;
        __syncthreads();
        if (threadIdx.x < 32) {
            const auto leaf = [&](int i) { return parts[i * 32 + lane]; };
            write_out(a, panel * kPanelRows + half + lane,
                      ((leaf(0) + leaf(1)) + (leaf(2) + leaf(3))) + ((leaf(4) + leaf(5)) + (leaf(6) + leaf(7))));
        }
    } else {
        float sum = 0;
        for (int g = 0, chunk = 0; chunk < blocks; ++g, chunk += 32) {
            asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsAhead - 1) : "memory");
            __syncwarp();
            const int buffer = g % 2 * 32 * 32;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int in = warp + 8 * i, block = chunk + in;
                if (block >= blocks) break;
                const u8* const from = ring + ((g % kGroupsAhead) * 4 + i) * kPiece;
                parts[buffer + in * 32 + lane] = part_of(from, block);
                scales[buffer + in * 32 + lane] = *reinterpret_cast<const std::uint16_t*>(from + 2 * lane);
            }
            __syncwarp();
            issue(g + kGroupsAhead);
            __syncthreads();
            if (warp == 0) {
                const int n = blocks - chunk < 32 ? blocks - chunk : 32;
#pragma unroll 8
                for (int i = 0; i < n; ++i)
                    sum = fused(parts[buffer + i * 32 + lane],
                                float_of_half(scales[buffer + i * 32 + lane]) * power_of(chunk + i), sum);
            }
        }
        if (warp == 0) write_out(a, panel * kPanelRows + half + lane, sum);
    }
}
using GemvKernel = void (*)(LinearArgs);
void launch_early(GemvKernel kernel, const LinearArgs& a, int blocks, int shared, cudaStream_t stream) {
    static std::map<GemvKernel, int> limits;
    if (int& limit = limits[kernel]; shared > limit) {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        limit = shared;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = blocks, config.blockDim = 256, config.dynamicSmemBytes = shared, config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, a));
}
void gemv_ring_variant(const LinearArgs& a, cudaStream_t stream) {
    const int shared = a.columns / kBlock * kDigitBytes + 8 * kRing * 576 + 2 * 32 * 32 * 6;
    launch_early(a.num_leaves == 8 ? gemv_ring<true> : gemv_ring<false>, a, a.rows / kPanelRows * 2, shared, stream);
}

// The prototype's GEMV, launched before the kernel before it has ended.
template <int R, bool kLeaves>
__global__ void __launch_bounds__(256) gemv_early(const __grid_constant__ LinearArgs a) {
    Cta cta;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    q4_gemv<R, kLeaves>(cta, a, [] { asm volatile("griddepcontrol.wait;" ::: "memory"); });
}
template <int R>
void gemv_early_variant(const LinearArgs& a, cudaStream_t stream) {
    launch_early(a.num_leaves == 8 ? gemv_early<R, true> : gemv_early<R, false>, a, blocks_of(a, R), shared_of(a, R),
                 stream);
}

struct TileVariant {
    const char* name;
    void (*run)(const LinearArgs&);
    bool swizzled = false;
};
int main(int argc, char** argv) {
    const bool quick = argc > 1 && !std::strcmp(argv[1], "quick");
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    std::printf("%s, %d SMs\n", p.name, p.multiProcessorCount);
    set_limits();
    const TileVariant tiles[] = {
        {"prototype", [](const LinearArgs& a) { tile(a, kWgmma); }},
        {"2 groups, fed", fed_variant<2, false>, true},
        {"2 groups, fed, halves", fed_variant<2, true>, true},
        {"3 groups, fed", fed_variant<3, false>, true},
    };
    const GemvVariant gemvs[] = {
        kGemvs[0],
        kGemvs[1],
        {"1 row, early", gemv_early_variant<1>},
        {"2 rows, early", gemv_early_variant<2>},
        {"ring of 16, early", gemv_ring_variant},
    };
    const auto with_digits = [&](Layer& l, const TileVariant& v) {  // made anew, not timed
        LinearArgs args = l.for_kind(kWgmma);
        const int all = (l.a.tokens + 127) / 128 * 128 * (l.a.columns / 32);
        const SpreadArgs spread{l.digits, l.a.tokens, l.a.columns, l.spread_wgmma};
        if (v.swizzled) spread_swizzled<<<(all + 127) / 128, 128>>>(spread);
        else spread_wgmma_kernel<<<(all + 127) / 128, 128>>>(spread);
        CHECK(cudaDeviceSynchronize());
        return args;
    };
    int bad = 0;
    for (const int extreme : {0, 1, 2})
        for (const int leaves : {1, 8}) {
            Layer one(256, 4096 + 32, 1, leaves, 10 + extreme * 3, extreme > 0);
            for (const auto& v : gemvs) {
                CHECK(cudaMemset(one.a.out, 0xff, 256 * sizeof(float)));
                v.run(one.a, nullptr);
                bad += errors_of(one, v.name, true);
            }
            one.release();
            Layer many(320, 1024 + 32, 200, leaves, 11 + extreme * 3, extreme > 0);
            for (const auto& v : tiles) {
                CHECK(cudaMemset(many.a.out, 0xff, std::size_t(many.a.tokens) * many.a.rows * leaves * 4));
                v.run(with_digits(many, v));
                bad += errors_of(many, v.name, false);
            }
            many.release();
        }
    std::printf("bits: %s\n", bad ? "DIFFERENT" : "all equal");
    if (quick) return bad != 0;
    const double copied = copied_per_s();
    std::printf("copy %.0f GB/s\n", copied / 1e9);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (const Shape& s : kShapes) measure_gemv(s, gemvs, stream, copied);
    for (const Shape& s :
         {Shape{"8B gate+up", 28672, 4096, 1}, Shape{"8B down", 4096, 14336, 8}, Shape{"8B qkv", 6144, 4096, 1},
          Shape{"8B o", 4096, 4096, 8}, Shape{"0.5B gate+up", 9728, 896, 1}})
        for (const int tokens : {128, 512, 2048}) {
            Layer l(s.rows, s.columns, tokens, s.leaves, 5);
            for (const auto& v : tiles) {
                const LinearArgs args = with_digits(l, v);
                const double t = seconds([&](int) { v.run(args); }, 5);
                std::printf("tile %-13s %5d %-30s %9.1f us %6.1f TFLOP/s\n", s.name, tokens, v.name, t * 1e6,
                            2.0 * s.rows * s.columns * tokens / t / 1e12);
            }
            l.release();
        }
    return bad != 0;
}
