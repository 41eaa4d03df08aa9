// simt.h as an emulation on the CPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/reused_memory.h"
#include "gpu/simt.h"

namespace karat::gpu {

struct Race : std::runtime_error { using std::runtime_error::runtime_error; };

// A block's shared memory, in words of 32 bits, and who touched each since the last barrier.
class SharedMemory {
public:
    explicit SharedMemory(std::size_t bytes) : words_(bytes / 4, kNothing), touched_(bytes / 4) {}

    void begin_thread(int thread) { thread_ = thread; }
    void barrier() { ++epoch_; }
    std::size_t bytes() const { return 4 * words_.size(); }

    template <class V>
    V read(std::size_t byte) {
        V value;
        check<V>(byte);
        for (std::size_t w = byte / 4; w < (byte + sizeof(V) + 3) / 4; ++w) note_read(w);
        std::memcpy(&value, at(byte), sizeof value);
        return value;
    }
    template <class V>
    void write(std::size_t byte, V value) {
        check<V>(byte);
        for (std::size_t w = byte / 4; w < (byte + sizeof(V) + 3) / 4; ++w) note_write(w);
        std::memcpy(at(byte), &value, sizeof value);
    }
    // A copy that was begun: nothing is there yet.
    template <class V>
    void empty(std::size_t byte) {
        check<V>(byte);
        for (std::size_t w = byte / 4; w < (byte + sizeof(V)) / 4; ++w) {
            note_write(w);
            words_[w] = kNothing;
        }
    }
    void arrive(std::size_t byte, const U4& bytes, std::size_t count) { std::memcpy(at(byte), &bytes, count); }

private:
    struct Touch {
        int epoch = -1, writer = -1, reader = -1;
        bool many = false;
    };
    static constexpr std::uint32_t kNothing = 0x7fc0dead;  // NaN
    std::vector<std::uint32_t> words_;
    std::vector<Touch> touched_;
    int epoch_ = 0, thread_ = 0;

    unsigned char* at(std::size_t byte) { return reinterpret_cast<unsigned char*>(words_.data()) + byte; }

    template <class V>
    void check(std::size_t byte) const {
        if (byte % alignof(V)) throw std::out_of_range("shared memory: a misaligned access");
        if (byte + sizeof(V) > bytes()) throw std::out_of_range("shared memory: byte " + std::to_string(byte));
    }
    Touch& touch(std::size_t word) {
        Touch& t = touched_[word];
        if (t.epoch != epoch_) t = {epoch_, -1, -1, false};
        return t;
    }
    void note_read(std::size_t word) {
        Touch& t = touch(word);
        if (t.writer >= 0 && t.writer != thread_) race(word, t.writer, "written", "read");
        if (t.reader >= 0 && t.reader != thread_) t.many = true;
        t.reader = thread_;
    }
    void note_write(std::size_t word) {
        Touch& t = touch(word);
        if (t.writer >= 0 && t.writer != thread_) race(word, t.writer, "written", "written");
        if (t.reader >= 0 && (t.reader != thread_ || t.many)) race(word, t.reader, "read", "written");
        t.writer = thread_;
    }
    [[noreturn]] void race(std::size_t word, int other, const char* before, const char* now) const {
        throw Race("shared memory: word " + std::to_string(word) + " is " + before + " by thread " +
                   std::to_string(other) + " and " + now + " by thread " + std::to_string(thread_) +
                   ", without a barrier");
    }
};

template <class T>
struct Shared {
    SharedMemory* memory;
    std::size_t byte;  // where it begins
    T get(int i) const { return get_as<T>(i); }
    void set(int i, T value) const { memory->write(byte + static_cast<std::size_t>(i) * sizeof(T), value); }
    template <class V>
    V get_as(int i) const {
        return memory->read<V>(byte + static_cast<std::size_t>(i) * sizeof(T));
    }
};

template <class Cta, class T>
class PerThread {
public:
    explicit PerThread(Cta& cta) : values_(static_cast<std::size_t>(cta.threads())) {
        static_assert(std::is_trivially_copyable_v<T>);
        std::memset(static_cast<void*>(values_.data()), 0x7f, sizeof(T) * values_.size());
    }
    T& operator[](int thread) { return values_[static_cast<std::size_t>(thread)]; }

private:
    std::vector<T> values_;
};

// Four integers in float16, of the columns of a product on tensor cores that one lane has.
struct FourHalves { float v[4]; };

// The bytes of a word, each less kZero, which is at most 1,023.
template <int kZero>
FourHalves halves_of_bytes(std::uint32_t word) {
    FourHalves made;
    for (int i = 0; i < 4; ++i) made.v[i] = static_cast<float>(static_cast<int>(word >> 8 * i & 255) - kZero);
    return made;
}

struct Inexact : std::runtime_error { using std::runtime_error::runtime_error; };

// Throws where tensor cores might round sum + the products of a and b.
inline void require_exact(float sum, const float (&a)[16], const float (&b)[16]) {
    double magnitudes = 0, unit = std::numeric_limits<double>::infinity();  // of which all are multiples
    const auto note = [&](double number) {
        if (number == 0) return;
        int exponent;
        const auto digits = static_cast<std::int64_t>(std::ldexp(std::frexp(number, &exponent), 53));
        unit = std::min(unit, std::ldexp(1.0, exponent - 53 + std::countr_zero(static_cast<std::uint64_t>(digits))));
        magnitudes += std::abs(number);
    };
    note(sum);
    for (int k = 0; k < 16; ++k) note(static_cast<double>(a[k]) * b[k]);
    if (!(magnitudes <= 0x1p24 * unit))
        throw Inexact("a sum on tensor cores that is not exact: magnitudes of " + std::to_string(magnitudes) +
                      ", in units of " + std::to_string(unit));
}

using Random = std::minstd_rand;

// Numbers from 0 on in a random order: there are as many orders as places to begin, and steps from one to the next.
class Order {
public:
    Order(int count, Random& random) : count_(count), at_(pick(random)), step_(1) {
        do step_ = count > 1 ? 1 + pick(random) : 1;
        while (std::gcd(step_, count) != 1);
    }
    int next() { return at_ = static_cast<int>((static_cast<std::int64_t>(at_) + step_) % count_); }

private:
    int count_, at_, step_;
    int pick(Random& random) const { return static_cast<int>(random() % static_cast<unsigned>(count_)); }
};

class Cta {
public:
    Cta(int x, int y, int threads, SharedMemory& memory, Random& random)
        : x_(x), y_(y), threads_(threads), memory_(memory), random_(random) {}

    int x() const { return x_ - first_x_; }
    int y() const { return y_; }
    int threads() const { return threads_; }
    void count_x_from(int first) { first_x_ += first; }

    template <class T>
    Shared<T> shared(int count) {
        const Shared<T> taken{&memory_, used_};
        used_ += (static_cast<std::size_t>(count) * sizeof(T) + 127) / 128 * 128;
        if (used_ > memory_.bytes()) throw std::out_of_range("more shared memory than the launch has");
        return taken;
    }
    template <class F>
    void each(const F& f) {
        Order order(threads_, random_);
        for (int i = 0; i < threads_; ++i) {
            const int thread = order.next();
            memory_.begin_thread(thread);
            f(thread);
        }
    }
    void sync() { memory_.barrier(); }

    template <class T>
    void copy16(const Shared<T>& to, int i, const void* from) {
        begin_copy<U4>(to, i, from);
    }
    template <class T>
    void copy4(const Shared<T>& to, int i, const void* from) {
        begin_copy<std::uint32_t>(to, i, from);
    }
    void commit() {
        groups_.push_back(std::move(open_));
        open_.clear();
    }
    template <int kLeft>
    void wait() {
        while (groups_.size() > static_cast<std::size_t>(kLeft)) {
            for (const Copy& copy : groups_.front()) memory_.arrive(copy.to, copy.bytes, copy.count);
            groups_.erase(groups_.begin());
        }
    }

    // The largest of a warp's numbers, for all its threads. T is numbers `v`, none of which is NaN.
    template <class T>
    void largest_of_warp(PerThread<Cta, T>& x) const {
        for (int first = 0; first < threads_; first += 32)
            for (std::size_t i = 0; i < std::size(x[first].v); ++i) {
                float largest = x[first].v[i];
                for (int lane = 1; lane < 32; ++lane) {
                    const float other = x[first + lane].v[i];
                    largest = largest < other ? other : largest;
                }
                for (int lane = 0; lane < 32; ++lane) x[first + lane].v[i] = largest;
            }
    }

    // A warp's product on tensor cores: what `own` says of a lane has it added to its sums (Product).
    template <class Own>
    void multiply(const Own& own) const {
        for (int first = 0; first < threads_; first += 32) {
            float rows[16][16], tokens[8][16];
            for (int lane = 0; lane < 32; ++lane) {
                const Product of = own(first + lane);
                const auto keep = [&](const FourHalves& from, float (&to)[16]) {
                    std::copy_n(from.v, 4, to + lane % 4 * 4);
                };
                keep(of.row, rows[lane / 4]);
                keep(of.row_8_on, rows[lane / 4 + 8]);
                keep(of.token, tokens[lane / 4]);
            }
            const int looked_at = static_cast<int>(random_() % 16);
            for (int lane = 0; lane < 32; ++lane) {
                const Product of = own(first + lane);
                for (int i = 0; i < 4; ++i) {
                    const auto &row = rows[lane / 4 + i / 2 * 8], &token = tokens[lane % 4 * 2 + i % 2];
                    if ((4 * lane + i) % 16 == looked_at) require_exact(of.sums[i], row, token);
                    for (int k = 0; k < 16; ++k) of.sums[i] += row[k] * token[k];
                }
            }
        }
    }

    // It changes nothing: the address alone is looked at.
    void prefetch(const std::uint8_t* from, int bytes, int, int) const {
        if (bytes % 16) throw std::out_of_range("a prefetch of " + std::to_string(bytes) + " bytes");
        if (bytes > 0) {
            value_at<U4>(from);
            value_at<U4>(from + bytes - 16);
        }
    }

private:
    struct Copy {
        std::size_t to;
        U4 bytes;
        std::size_t count;  // of them
    };
    int x_, y_, threads_, first_x_ = 0;
    SharedMemory& memory_;
    Random& random_;
    std::size_t used_ = 0;
    std::vector<Copy> open_;                 // of all threads
    std::vector<std::vector<Copy>> groups_;  // committed, oldest first

    template <class V, class T>
    void begin_copy(const Shared<T>& to, int i, const void* from) {
        const V value = value_at<V>(from);
        Copy copy{to.byte + static_cast<std::size_t>(i) * sizeof(T), {}, sizeof value};
        std::memcpy(&copy.bytes, &value, sizeof value);
        memory_.template empty<V>(copy.to);
        open_.push_back(copy);
    }
};

// Launches with the same seed come in the same order.
struct Device {
    Random random;
    bool is_recording = false;
    std::vector<std::function<void()>> recorded;
    ReusedMemory reused;

    explicit Device(unsigned seed) : random(seed) {}
    template <class Work>
    void run_or_record(const Work& work) {
        if (is_recording) recorded.emplace_back(work);
        else work();
    }
};

// Runs all blocks of a launch.
template <class Kernel>
void launch(Device& device, const Kernel& kernel) {
    const Grid grid = kernel.grid();
    if (grid.x <= 0 || grid.y <= 0) return;
    if (grid.threads > Kernel::kThreads)
        throw std::out_of_range("a block of " + std::to_string(grid.threads) + " threads, of a kernel for " +
                                std::to_string(Kernel::kThreads));
    device.run_or_record([&device, kernel, grid] {
        Order order(grid.x * grid.y, device.random);
        for (int i = 0; i < grid.x * grid.y; ++i) {
            const int block = order.next();
            SharedMemory memory(grid.shared_bytes);
            Cta cta(block % grid.x, block / grid.x, grid.threads, memory, device.random);
            ahead_of(kernel, cta);
            kernel.run(cta);
        }
    });
}

}  // namespace karat::gpu
