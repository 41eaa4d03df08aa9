// A kernel written once, as phases between barriers: nvcc compiles it for the GPU, g++ as an emulation.
//
//     template <class Cta> SIMT void kernel(Cta& cta, const Args& a) {
//         auto parts = cta.template shared<float>(n);        // shared memory of the block, taken in order
//         PerThread<Cta, float[4]> sum(cta);                 // a thread's own registers, kept between phases
//         cta.each([&](int thread) { ... });                 // a phase: every thread by itself
//         cta.sync();                                        // a barrier
//         cta.warps([&](auto& warp) {                        // a phase of warps; collective operations only here
//             warp.each([&](int lane) { ... });
//             warp.mma(...);
//         });
//     }
//
// On the GPU `each` runs its argument for threadIdx.x, `sync` is __syncthreads. In the emulation `each` runs it for all
// threads of the block in a random order, so a result that depends on the order shows; a block's shared memory begins
// as NaN; copies that were begun arrive only where they are waited for; and a word of shared memory that two threads
// touch between two barriers, one of them writing, is an error, whatever the values (`Race`).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SIMT __device__ __forceinline__
#else
#define SIMT inline
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>
#endif

namespace simt {

// ---- IEEE operations, one rounding each; nvcc is given -fmad=false -ftz=false, g++ -ffp-contract=off ----------------
SIMT float fused(float a, float b, float c) {
#if defined(__CUDACC__)
    return __fmaf_rn(a, b, c);
#else
    return std::fmaf(a, b, c);
#endif
}
SIMT float float_of(std::uint32_t bits) {
#if defined(__CUDACC__)
    return __uint_as_float(bits);
#else
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
#endif
}
SIMT std::uint32_t bits_of(float f) {
#if defined(__CUDACC__)
    return __float_as_uint(f);
#else
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
#endif
}
SIMT float float_of_int(std::int32_t i) {
#if defined(__CUDACC__)
    return __int2float_rn(i);
#else
    return static_cast<float>(i);
#endif
}
SIMT std::int32_t nearest(float f) {  // |f| < 2^23
#if defined(__CUDACC__)
    return __float2int_rn(f);
#else
    return static_cast<std::int32_t>(std::nearbyintf(f));
#endif
}
SIMT float float_of_half(std::uint32_t h) {  // of the low 16 bits; exact
#if defined(__CUDACC__)
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<std::uint16_t>(h)));
    return f;
#else
    const std::uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400) return std::ldexp(static_cast<float>(magnitude), -24) * (sign ? -1.0f : 1.0f);
    return float_of(sign | ((magnitude << 13) + 0x38000000u));
#endif
}

// c + a.low * b.byte[2 kHigh] + a.high * b.byte[2 kHigh + 1]: a is two signed words, b four unsigned bytes.
template <int kHigh>
SIMT std::int32_t dot2(std::uint32_t a, std::uint32_t b, std::int32_t c) {
#if defined(__CUDACC__)
    std::int32_t d;
    if (kHigh) asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    const auto low = static_cast<std::int16_t>(a & 0xffff), high = static_cast<std::int16_t>(a >> 16);
    return c + low * static_cast<std::int32_t>(b >> (16 * kHigh) & 255) +
           high * static_cast<std::int32_t>(b >> (16 * kHigh + 8) & 255);
#endif
}

// c + the sum over four bytes of digits (signed) * codes (unsigned).
SIMT std::int32_t dot4(std::uint32_t digits, std::uint32_t codes, std::int32_t c) {
#if defined(__CUDACC__)
    std::int32_t d;
    asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(digits), "r"(codes), "r"(c));
    return d;
#else
    for (int i = 0; i < 32; i += 8)
        c += static_cast<std::int8_t>(digits >> i & 255) * static_cast<std::int32_t>(codes >> i & 255);
    return c;
#endif
}

// Both bf16 of a minus 136: exact for 128 … 143.
SIMT std::uint32_t minus_136(std::uint32_t a) {
#if defined(__CUDACC__)
    std::uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3f803f80u), "r"(0xc308c308u));
    return d;
#else
    return bits_of(float_of(a << 16) - 136.0f) >> 16 | (bits_of(float_of(a & 0xffff0000u) - 136.0f) & 0xffff0000u);
#endif
}

struct alignas(8) U2 { std::uint32_t v[2]; };
struct alignas(16) U4 { std::uint32_t v[4]; };

// ---- operations of tensor cores: what a lane holds is defined by PTX ("Matrix fragments for mma") --------------------
// g = lane / 4, t = lane % 4.
//   m16n8k32, bytes:  A, register r: row g + 8 (r & 1), columns 4 t + 16 (r >> 1) + 0 … 3
//                     B, register r: column g, rows 4 t + 16 r + 0 … 3
//   m16n8k16, bf16:   A, register r: row g + 8 (r & 1), columns 2 t + 8 (r >> 1) + 0, 1
//                     B, register r: column g, rows 2 t + 8 r + 0, 1
//   C, both:          register r: row g + 8 (r >> 1), column 2 t + (r & 1)

#if defined(__CUDACC__)

// ---- the GPU --------------------------------------------------------------------------------------------------------
template <class T>
struct Shared {  // of shared memory
    T* at;
    SIMT T get(int i) const { return at[i]; }
    SIMT void set(int i, T value) const { at[i] = value; }
    template <class V>
    SIMT V get_as(int i) const {
        return *reinterpret_cast<const V*>(at + i);
    }
    template <class V>
    SIMT void set_as(int i, V value) const {
        *reinterpret_cast<V*>(at + i) = value;
    }
};

template <class Cta, class T>
struct PerThread {
    T value;
    SIMT explicit PerThread(Cta&) {}
    SIMT T& operator[](int) { return value; }
};

template <class T>
struct PerLane {
    T value;
    SIMT T& operator[](int) { return value; }
};

struct Warp {
    int index;
    template <class F>
    SIMT void each(const F& f) const {
        f(static_cast<int>(threadIdx.x & 31));
    }
    SIMT void mma_bytes(PerLane<std::int32_t[4]>& d, PerLane<U4>& a, PerLane<U2>& b) const {  // d += a b, signed
        std::int32_t (&c)[4] = d.value;
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a.value.v[0]), "r"(a.value.v[1]), "r"(a.value.v[2]), "r"(a.value.v[3]), "r"(b.value.v[0]),
              "r"(b.value.v[1]));
    }
    SIMT void mma_bf16(PerLane<float[4]>& d, PerLane<U4>& a, PerLane<U2>& b) const {
        float (&c)[4] = d.value;
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.value.v[0]), "r"(a.value.v[1]), "r"(a.value.v[2]), "r"(a.value.v[3]), "r"(b.value.v[0]),
              "r"(b.value.v[1]));
    }
};

// Four warps: wgmma m64n128k16, A in registers, B in shared memory. A thread has rows 16 (warp % 4) + g and + 8 of D,
// as in m16n8k16. B is K-major without a swizzle: eight columns of N by 16 bytes of K are 128 bytes in a row (a core
// matrix); the next eight columns begin 128 bytes on, the other eight of K `half` bytes on. It runs asynchronously: A,
// B and D belong to it until `wait`.
struct Acc { float v[64]; };
struct Frags { U4 step[2]; };

struct Warpgroup {
    int index;
    template <class F>
    SIMT void each(const F& f) const {
        f(static_cast<int>(threadIdx.x & 127));
    }
    template <class D>
    SIMT void begin(D& of) const {
#pragma unroll
        for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(of.value.v[i])::"memory");
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    }
    SIMT void commit() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
    }
    template <int kLeft, class D>
    SIMT void wait(D& done) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
#pragma unroll
        for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(done.value.v[i])::"memory");
    }
    template <class D, class A>
    SIMT void mma(D& of, A& from, int step, const Shared<unsigned char>& b, int at, int half, bool add) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(b.at + at));
        const std::uint64_t descriptor = static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
                                         static_cast<std::uint64_t>(half >> 4) << 16 |
                                         static_cast<std::uint64_t>(128 >> 4) << 32;
        Acc& d = of.value;
        const U4& a = from.value.step[step];
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
            "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, "
            "%33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
            "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
            : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]), "+f"(d.v[4]), "+f"(d.v[5]), "+f"(d.v[6]),
              "+f"(d.v[7]), "+f"(d.v[8]), "+f"(d.v[9]), "+f"(d.v[10]), "+f"(d.v[11]), "+f"(d.v[12]), "+f"(d.v[13]),
              "+f"(d.v[14]), "+f"(d.v[15]), "+f"(d.v[16]), "+f"(d.v[17]), "+f"(d.v[18]), "+f"(d.v[19]), "+f"(d.v[20]),
              "+f"(d.v[21]), "+f"(d.v[22]), "+f"(d.v[23]), "+f"(d.v[24]), "+f"(d.v[25]), "+f"(d.v[26]), "+f"(d.v[27]),
              "+f"(d.v[28]), "+f"(d.v[29]), "+f"(d.v[30]), "+f"(d.v[31]), "+f"(d.v[32]), "+f"(d.v[33]), "+f"(d.v[34]),
              "+f"(d.v[35]), "+f"(d.v[36]), "+f"(d.v[37]), "+f"(d.v[38]), "+f"(d.v[39]), "+f"(d.v[40]), "+f"(d.v[41]),
              "+f"(d.v[42]), "+f"(d.v[43]), "+f"(d.v[44]), "+f"(d.v[45]), "+f"(d.v[46]), "+f"(d.v[47]), "+f"(d.v[48]),
              "+f"(d.v[49]), "+f"(d.v[50]), "+f"(d.v[51]), "+f"(d.v[52]), "+f"(d.v[53]), "+f"(d.v[54]), "+f"(d.v[55]),
              "+f"(d.v[56]), "+f"(d.v[57]), "+f"(d.v[58]), "+f"(d.v[59]), "+f"(d.v[60]), "+f"(d.v[61]), "+f"(d.v[62]),
              "+f"(d.v[63])
            : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(descriptor), "r"(static_cast<int>(add)));
#endif
    }
};

extern __shared__ __align__(128) unsigned char simt_shared[];

struct Cta {
    int used = 0;
    SIMT int x() const { return static_cast<int>(blockIdx.x); }
    SIMT int y() const { return static_cast<int>(blockIdx.y); }
    SIMT int z() const { return static_cast<int>(blockIdx.z); }
    SIMT int threads() const { return static_cast<int>(blockDim.x); }
    template <class T>
    SIMT Shared<T> shared(int count) {
        Shared<T> s{reinterpret_cast<T*>(simt_shared + used)};
        used += (count * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
        return s;
    }
    template <class F>
    SIMT void each(const F& f) const {
        f(static_cast<int>(threadIdx.x));
    }
    template <class F>
    SIMT void warps(const F& f) const {
        Warp w{static_cast<int>(threadIdx.x >> 5)};
        f(w);
    }
    template <class F>
    SIMT void warpgroups(const F& f) const {
        Warpgroup w{static_cast<int>(threadIdx.x >> 7)};
        f(w);
    }
    SIMT void sync() const { __syncthreads(); }
    // What threads stored or copied to shared memory is shown to wgmma; before the barrier.
    SIMT void show_to_wgmma() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    // 16 bytes of global memory to shared memory, or zeros; they are there after `wait` and a barrier.
    template <class T>
    SIMT void copy16(const Shared<T>& to, int i, const void* from, bool there = true) const {
        const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to.at + i));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0));
    }
    SIMT void commit() const { asm volatile("cp.async.commit_group;"); }
    template <int kLeft>
    SIMT void wait() const {
        asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
    }
    // Global memory that no thread of the launch writes.
    template <class V>
    SIMT V load(const void* from) const {
        V v;
        if constexpr (sizeof(V) == 16) {
            const int4 q = __ldg(static_cast<const int4*>(from));
            memcpy(&v, &q, 16);
        } else if constexpr (sizeof(V) == 8) {
            const int2 q = __ldg(static_cast<const int2*>(from));
            memcpy(&v, &q, 8);
        } else if constexpr (sizeof(V) == 4) {
            const int q = __ldg(static_cast<const int*>(from));
            memcpy(&v, &q, 4);
        } else {
            const unsigned short q = __ldg(static_cast<const unsigned short*>(from));
            memcpy(&v, &q, sizeof v);
        }
        return v;
    }
};

#else

// ---- the emulation --------------------------------------------------------------------------------------------------
struct Race : std::runtime_error { using std::runtime_error::runtime_error; };

struct Memory {  // a block's shared memory, in words of 32 bits
    struct Touch {
        int epoch = -1, writer = -1, reader = -1;
        bool many = false;
    };
    std::vector<std::uint32_t> words;
    std::vector<Touch> touched;
    int epoch = 0, thread = -1;  // -1: nobody's (a copy)

    explicit Memory(std::size_t bytes) : words(bytes / 4, 0x7fc0dead), touched(bytes / 4) {}
    Touch& at(std::size_t word) {
        if (word >= words.size()) throw std::out_of_range("shared memory: word " + std::to_string(word));
        Touch& t = touched[word];
        if (t.epoch != epoch) t = {epoch, -1, -1, false};
        return t;
    }
    void read(std::size_t word) {
        Touch& t = at(word);
        if (t.writer >= 0 && t.writer != thread)
            throw Race("word " + std::to_string(word) + " written by thread " + std::to_string(t.writer) +
                       " and read by " + std::to_string(thread) + " without a barrier");
        if (t.reader >= 0 && t.reader != thread) t.many = true;
        t.reader = thread;
    }
    void write(std::size_t word) {
        Touch& t = at(word);
        if ((t.writer >= 0 && t.writer != thread) || (t.reader >= 0 && (t.reader != thread || t.many)))
            throw Race("word " + std::to_string(word) + " written by thread " + std::to_string(thread) +
                       " and touched by another without a barrier");
        t.writer = thread;
    }
};

template <class T>
struct Shared {
    Memory* memory;
    std::size_t byte;  // where it begins
    template <class V>
    V get_as(int i) const {
        V v;
        const std::size_t from = byte + static_cast<std::size_t>(i) * sizeof(T);
        if (from % alignof(V)) throw std::out_of_range("a misaligned load");
        for (std::size_t w = from / 4; w < (from + sizeof(V) + 3) / 4; ++w) memory->read(w);
        std::memcpy(&v, reinterpret_cast<const char*>(memory->words.data()) + from, sizeof v);
        return v;
    }
    template <class V>
    void set_as(int i, V v) const {
        const std::size_t from = byte + static_cast<std::size_t>(i) * sizeof(T);
        if (from % alignof(V)) throw std::out_of_range("a misaligned store");
        for (std::size_t w = from / 4; w < (from + sizeof(V) + 3) / 4; ++w) memory->write(w);
        std::memcpy(reinterpret_cast<char*>(memory->words.data()) + from, &v, sizeof v);
    }
    T get(int i) const { return get_as<T>(i); }
    void set(int i, T v) const { set_as<T>(i, v); }
};

template <class T>
struct PerLane {
    T value[32];
    PerLane() { std::memset(static_cast<void*>(value), 0x7f, sizeof value); }
    T& operator[](int lane) { return value[lane]; }
};

template <class Cta, class T>
struct PerThread {
    std::unique_ptr<T[]> values;
    explicit PerThread(Cta& cta) : values(new T[static_cast<std::size_t>(cta.threads())]) {
        std::memset(static_cast<void*>(values.get()), 0x7f, sizeof(T) * static_cast<std::size_t>(cta.threads()));
    }
    T& operator[](int thread) { return values[static_cast<std::size_t>(thread)]; }
};

inline std::vector<int> shuffled(int count, std::mt19937& random) {
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    return order;
}

inline int lowest_bit(double x) {
    if (x == 0 || !std::isfinite(x)) return 2000;
    int exponent;
    const auto m = static_cast<std::int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
    return exponent - 53 + __builtin_ctzll(static_cast<unsigned long long>(m < 0 ? -m : m));
}

// d + sixteen products. A sum that float32 does not hold exactly, whatever the order, is an error: its bits are the
// chip's. So are partial sums: the sum of magnitudes, in units of the lowest bit of any of them, is at most 2^24.
template <class Product>
float exact_sum(float d, const Product& product) {
    double sum = d, magnitude = std::fabs(sum);
    int lowest = lowest_bit(sum);
    for (int k = 0; k < 16; ++k) {
        const double p = product(k);
        sum += p;
        magnitude += std::fabs(p);
        lowest = std::min(lowest, lowest_bit(p));
    }
    if (std::isfinite(magnitude) && magnitude > std::ldexp(1.0, 24 + lowest))
        throw std::overflow_error("a sum that float32 may not hold exactly");
    return static_cast<float>(sum);
}

struct Warp {
    int index;
    Memory& memory;
    std::mt19937& random;
    template <class F>
    void each(const F& f) const {
        for (const int lane : shuffled(32, random)) {
            memory.thread = 32 * index + lane;
            f(lane);
        }
    }
    static std::int32_t byte(std::uint32_t word, int i) { return static_cast<std::int8_t>(word >> (8 * i) & 255); }
    void mma_bytes(PerLane<std::int32_t[4]>& d, PerLane<U4>& a, PerLane<U2>& b) const {
        std::int32_t rows[16][32], columns[32][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                const int g = lane / 4, t = lane % 4;
                for (int r = 0; r < 4; ++r) rows[g + 8 * (r & 1)][4 * t + 16 * (r >> 1) + i] = byte(a[lane].v[r], i);
                for (int r = 0; r < 2; ++r) columns[4 * t + 16 * r + i][g] = byte(b[lane].v[r], i);
            }
        for (int lane = 0; lane < 32; ++lane)
            for (int r = 0; r < 4; ++r) {
                std::int64_t sum = d[lane][r];
                for (int k = 0; k < 32; ++k)
                    sum += rows[lane / 4 + 8 * (r >> 1)][k] * columns[k][2 * (lane % 4) + (r & 1)];
                if (sum != static_cast<std::int32_t>(sum)) throw std::overflow_error("a sum of 32 bits");
                d[lane][r] = static_cast<std::int32_t>(sum);
            }
    }
    static float bf16(std::uint32_t word, int i) { return float_of(word >> (16 * i) << 16); }
    void mma_bf16(PerLane<float[4]>& d, PerLane<U4>& a, PerLane<U2>& b) const {
        float rows[16][16], columns[16][8];
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 2; ++i) {
                const int g = lane / 4, t = lane % 4;
                for (int r = 0; r < 4; ++r) rows[g + 8 * (r & 1)][2 * t + 8 * (r >> 1) + i] = bf16(a[lane].v[r], i);
                for (int r = 0; r < 2; ++r) columns[2 * t + 8 * r + i][g] = bf16(b[lane].v[r], i);
            }
        for (int lane = 0; lane < 32; ++lane)
            for (int r = 0; r < 4; ++r)
                d[lane][r] = exact_sum(d[lane][r], [&](int k) {
                    return static_cast<double>(rows[lane / 4 + 8 * (r >> 1)][k]) * columns[k][2 * (lane % 4) + (r & 1)];
                });
    }
};

struct Acc { float v[64]; };
struct Frags { U4 step[2]; };

struct Warpgroup {  // what is begun runs where it is waited for, with what registers and shared memory hold by then
    using Queue = std::vector<std::vector<std::function<void()> > >;
    int index;
    Memory& memory;
    std::mt19937& random;
    Queue& groups;
    std::vector<std::function<void()> >& open;
    template <class F>
    void each(const F& f) const {
        for (const int i : shuffled(128, random)) {
            memory.thread = 128 * index + i;
            f(i);
        }
    }
    template <class D>
    void begin(D&) const {}
    void commit() const {
        groups.push_back(std::move(open));
        open.clear();
    }
    template <int kLeft, class D>
    void wait(D&) const {
        while (groups.size() > static_cast<std::size_t>(kLeft)) {
            for (const auto& run : groups.front()) run();
            groups.erase(groups.begin());
        }
    }
    template <class D, class A>
    void mma(D& of, A& from, int step, const Shared<unsigned char>& b, int at, int half, bool add) const {
        const int base = 128 * index;
        if (!add)
            for (int i = 0; i < 128; ++i)
                for (float& v : of[base + i].v) v = std::numeric_limits<float>::quiet_NaN();
        open.push_back([=, this_index = index, &of, &from, &memory = memory] {
            static thread_local float rows[64][16], columns[16][128];
            for (int i = 0; i < 128; ++i)
                for (int r = 0; r < 4; ++r)
                    for (int j = 0; j < 2; ++j)
                        rows[i / 32 * 16 + i % 32 / 4 + 8 * (r & 1)][2 * (i % 4) + 8 * (r >> 1) + j] =
                            Warp::bf16(from[base + i].step[step].v[r], j);
            memory.thread = -2 - this_index;  // one reader, and none of the block's threads
            for (int n = 0; n < 128; ++n)
                for (int k = 0; k < 16; k += 2) {
                    const auto word = b.get_as<std::uint32_t>(at + n / 8 * 128 + k / 8 * half + n % 8 * 16 + k % 8 * 2);
                    for (int j = 0; j < 2; ++j) columns[k + j][n] = Warp::bf16(word, j);
                }
            for (int i = 0; i < 128; ++i)
                for (int r = 0; r < 64; ++r) {
                    float& d = of[base + i].v[r];
                    const int row = i / 32 * 16 + i % 32 / 4 + 8 * (r >> 1 & 1),
                              column = r / 4 * 8 + 2 * (i % 4) + (r & 1);
                    d = exact_sum(add ? d : 0.0f,
                                  [&](int k) { return static_cast<double>(rows[row][k]) * columns[k][column]; });
                }
        });
    }
};

struct Cta {
    int x_, y_, z_, threads_;
    Memory& memory;
    std::mt19937& random;
    std::size_t used = 0;
    struct Copy {
        std::size_t to;
        unsigned char bytes[16];
    };
    std::vector<std::vector<Copy> > groups{};  // begun, oldest first; of all threads
    std::vector<Copy> open{};

    int x() const { return x_; }
    int y() const { return y_; }
    int z() const { return z_; }
    int threads() const { return threads_; }
    template <class T>
    Shared<T> shared(int count) {
        Shared<T> s{&memory, used};
        used += (static_cast<std::size_t>(count) * sizeof(T) + 127) / 128 * 128;
        if (used > memory.words.size() * 4) throw std::out_of_range("more shared memory than the launch has");
        return s;
    }
    template <class F>
    void each(const F& f) {
        for (const int thread : shuffled(threads_, random)) {
            memory.thread = thread;
            f(thread);
        }
    }
    template <class F>
    void warps(const F& f) {
        for (const int warp : shuffled(threads_ / 32, random)) {
            Warp w{warp, memory, random};
            f(w);
        }
    }
    std::vector<Warpgroup::Queue> queues{};
    std::vector<std::vector<std::function<void()> > > begun{};
    template <class F>
    void warpgroups(const F& f) {
        queues.resize(static_cast<std::size_t>(threads_ / 128));
        begun.resize(queues.size());
        for (const int i : shuffled(threads_ / 128, random)) {
            const auto at = static_cast<std::size_t>(i);
            Warpgroup w{i, memory, random, queues[at], begun[at]};
            f(w);
        }
    }
    void show_to_wgmma() const {}
    void sync() { ++memory.epoch; }
    template <class T>
    void copy16(const Shared<T>& to, int i, const void* from, bool there = true) {
        Copy copy{to.byte + static_cast<std::size_t>(i) * sizeof(T), {}};
        if (copy.to % 16 || (there && reinterpret_cast<std::uintptr_t>(from) % 16))
            throw std::out_of_range("a misaligned copy");
        if (there) std::memcpy(copy.bytes, from, 16);
        for (std::size_t w = copy.to / 4; w < copy.to / 4 + 4; ++w) {
            memory.write(w);               // a race with who reads it
            memory.words[w] = 0x7fc0beef;  // not yet there
        }
        open.push_back(copy);
    }
    void commit() {
        groups.push_back(std::move(open));
        open.clear();
    }
    template <int kLeft>
    void wait() {
        while (groups.size() > static_cast<std::size_t>(kLeft)) {
            for (const Copy& copy : groups.front())
                std::memcpy(reinterpret_cast<char*>(memory.words.data()) + copy.to, copy.bytes, 16);
            groups.erase(groups.begin());
        }
    }
    template <class V>
    V load(const void* from) const {
        if (reinterpret_cast<std::uintptr_t>(from) % alignof(V)) throw std::out_of_range("a misaligned load");
        V v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
};

// Runs all blocks of a launch, in a random order.
template <class Kernel>
void launch(int gx, int gy, int gz, int threads, std::size_t shared_bytes, unsigned seed, const Kernel& kernel) {
    std::mt19937 random(seed);
    for (const int block : shuffled(gx * gy * gz, random)) {
        Memory memory(shared_bytes);
        Cta cta{block % gx, block / gx % gy, block / gx / gy, threads, memory, random};
        kernel(cta);
    }
}
#endif

}  // namespace simt
