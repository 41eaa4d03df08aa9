// simt.h on a GPU.
#pragma once

#include <string>

#include "gpu/device.h"
#include "gpu/reused_memory.h"
#include "gpu/simt.h"

namespace karat::gpu {

template <class T>
struct Shared {
    T* at;
    KARAT_INLINE T get(int i) const { return at[i]; }
    KARAT_INLINE void set(int i, T value) const { at[i] = value; }
    template <class V>
    KARAT_INLINE V get_as(int i) const {
        return *reinterpret_cast<const V*>(at + i);
    }
};

template <class Cta, class T>
struct PerThread {
    T value;
    KARAT_INLINE explicit PerThread(Cta&) {}
    KARAT_INLINE T& operator[](int) { return value; }
};

// Four integers in float16, of the columns of a product on tensor cores that one lane has.
struct FourHalves { std::uint32_t v[2]; };

// The bytes of a word, each less kZero, which is at most 1,023.
template <int kZero>
KARAT_INLINE FourHalves halves_of_bytes(std::uint32_t word) {
    FourHalves made;
    constexpr std::uint32_t k1024 = 0x6400;  // as float16: the numbers that begin with it are 1,024 and a byte
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const std::uint32_t both = __byte_perm(word, k1024 >> 8, i == 0 ? 0x4140 : 0x4342);
        asm("sub.rn.f16x2 %0, %1, %2;"
            : "=r"(made.v[i])
            : "r"(both), "r"((k1024 | static_cast<std::uint32_t>(kZero)) * 0x10001u));
    }
    return made;
}

extern __shared__ __align__(128) unsigned char simt_shared[];

struct Cta {
    static constexpr int kLineBytes = 128;
    int used = 0, first_x = 0;

    KARAT_INLINE int x() const { return static_cast<int>(blockIdx.x) - first_x; }
    KARAT_INLINE int y() const { return static_cast<int>(blockIdx.y); }
    KARAT_INLINE int threads() const { return static_cast<int>(blockDim.x); }
    KARAT_INLINE void count_x_from(int first) { first_x += first; }

    template <class T>
    KARAT_INLINE Shared<T> shared(int count) {
        const Shared<T> taken{reinterpret_cast<T*>(simt_shared + used)};
        used += (count * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
        return taken;
    }
    template <class F>
    KARAT_INLINE void each(const F& f) const {
        f(static_cast<int>(threadIdx.x));
    }
    KARAT_INLINE void sync() const { __syncthreads(); }

    // Begins to copy 16 or 4 bytes of global memory. They are there after `commit`, `wait` and a barrier.
    template <class T>
    KARAT_INLINE void copy16(const Shared<T>& to, int i, const void* from) const {
        const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to.at + i));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
    }
    template <class T>
    KARAT_INLINE void copy4(const Shared<T>& to, int i, const void* from) const {
        const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to.at + i));
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from));
    }
    KARAT_INLINE void commit() const { asm volatile("cp.async.commit_group;"); }
    // Waits until at most kLeft of the groups that were committed have not arrived.
    template <int kLeft>
    KARAT_INLINE void wait() const {
        asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
    }

    // The largest of a warp's numbers, for all its threads. T is numbers `v`, none of which is NaN.
    template <class T>
    KARAT_INLINE void largest_of_warp(PerThread<Cta, T>& x) const {
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2)
#pragma unroll
            for (float& own : x.value.v) {
                const float other = __shfl_xor_sync(~0u, own, lanes);
                own = own < other ? other : own;
            }
    }

    // A warp's product on tensor cores: what `own` says of a lane has it added to its sums (Product).
    template <class Own>
    KARAT_INLINE void multiply(const Own& own) const {
        const Product of = own(static_cast<int>(threadIdx.x));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(of.sums[0]), "+f"(of.sums[1]), "+f"(of.sums[2]), "+f"(of.sums[3])
            : "r"(of.row.v[0]), "r"(of.row_8_on.v[0]), "r"(of.row.v[1]), "r"(of.row_8_on.v[1]), "r"(of.token.v[0]),
              "r"(of.token.v[1]));
    }

    // Asks for `bytes` of global memory, a multiple of 16 at one, to come to the L2 cache. `threads` threads do so
    // together: this one is number `thread` of them.
    KARAT_INLINE void prefetch(const std::uint8_t* from, int bytes, int thread, int threads) const {
#if __CUDA_ARCH__ >= 900 && !defined(KARAT_PREFETCH_LINES)
        if (thread == 0 && bytes > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
                         "r"(bytes));
#else
        for (int at = kLineBytes * thread; at < bytes; at += kLineBytes * threads)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from + at)));
#endif
    }
};

// How many blocks of threads a multiprocessor is to have registers for: Kernel::kBlocksOfCore, or 1.
template <class Kernel>
constexpr int blocks_of_core() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ <= 900  // later ones spill by it, and none was measured
    if constexpr (requires { Kernel::kBlocksOfCore; }) return Kernel::kBlocksOfCore;
#endif
    return 1;
}

// Whether the next launch may begin at once, Kernel::kIsShort: one that has few blocks beside. The blocks of two
// launches that have many would share multiprocessors while others have none.
template <class Kernel>
constexpr KARAT_HOST KARAT_INLINE bool is_short() {
    if constexpr (requires { Kernel::kIsShort; }) return Kernel::kIsShort;
    else return false;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_of_core<Kernel>())
    simt_kernel(const __grid_constant__ Kernel kernel) {
    Cta cta;
#if __CUDA_ARCH__ >= 900  // a launch begins before the one before has ended: when all of its blocks have said so
    if constexpr (is_short<Kernel>()) asm volatile("griddepcontrol.launch_dependents;");
#endif
    ahead_of(kernel, cta);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    kernel.run(cta);
}

struct Device {
    cudaStream_t stream;
    int number;
    bool is_recording = false;
    ReusedMemory reused;
    void use() const { cudaSetDevice(number); }  // a thread has a device of its own
};

template <class Kernel>
void launch(Device& device, const Kernel& kernel) {
    const Grid grid = kernel.grid();
    if (grid.x <= 0 || grid.y <= 0) return;
    const auto run = &simt_kernel<Kernel>;
    device.use();
    cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes));
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = device.stream;
    config.attrs = &early;
    config.numAttrs = 1;
    if (const cudaError_t status = cudaLaunchKernelEx(&config, run, kernel); status != cudaSuccess)
        throw DeviceError(std::string("a launch: ") + cudaGetErrorString(status));
}

}  // namespace karat::gpu
