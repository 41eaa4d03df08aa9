// karat._native.Limits: the kernels of limits.h on several threads at once, timed.
#include "python/limits_module.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "measure/limits.h"
#include "runtime/isa.h"
#include "runtime/pool.h"

namespace nb = nanobind;

namespace karat {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxThreads = Pool::kMaxThreads, kMaxStreams = 64;

// Runs work(thread) on every thread at the same time; seconds from the first start to the last end.
template <class Work>
double timed(std::size_t num_threads, const Work& work) {
    using Clock = std::chrono::steady_clock;
    std::vector<Clock::time_point> starts(num_threads), ends(num_threads);
    std::atomic<std::size_t> missing{num_threads};
    std::vector<std::thread> threads;
    const auto run = [&](std::size_t thread) {
        missing.fetch_sub(1);
        while (missing.load() != 0) std::this_thread::yield();
        starts[thread] = Clock::now();
        work(thread);
        ends[thread] = Clock::now();
    };
    try {
        for (std::size_t thread = 1; thread < num_threads; ++thread) threads.emplace_back(run, thread);
    } catch (...) {  // the system refuses another thread: let those that wait go on and end
        missing.store(0);
        for (std::thread& thread : threads) thread.join();
        throw;
    }
    run(0);
    for (std::thread& thread : threads) thread.join();
    const auto length = *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
    return std::chrono::duration<double>(length).count();
}

class Limits {
public:
    // A buffer of at least `num_bytes` that each thread fills in part (and so has near, where memory has places).
    Limits(std::size_t num_bytes, std::size_t num_threads) : num_threads_(num_threads) {
        if (num_threads == 0 || num_threads > kMaxThreads)
            throw std::invalid_argument("from 1 to " + std::to_string(kMaxThreads) + " threads");
        const std::size_t unit = num_threads * kHugePage;
        if (num_bytes == 0 || num_bytes > SIZE_MAX - unit) throw std::invalid_argument("a buffer of at least a byte");
        num_bytes_ = (num_bytes + unit - 1) / unit * unit;
        data_.reset(static_cast<std::uint64_t*>(std::aligned_alloc(kHugePage, num_bytes_)));
        if (!data_) throw std::bad_alloc();
#ifdef __linux__
        madvise(data_.get(), num_bytes_, MADV_HUGEPAGE);  // larger pages if they are to be had
#endif
        nb::gil_scoped_release released;
        timed(num_threads_, [&](std::size_t thread) {
            const std::size_t part = num_bytes_ / sizeof(std::uint64_t) / num_threads_;
            for (std::size_t i = thread * part; i < (thread + 1) * part; ++i) data_.get()[i] = word(i);
        });
    }

    std::size_t num_bytes() const { return num_bytes_; }

    std::pair<double, std::uint64_t> read(const std::string& isa, std::size_t streams, std::size_t ahead,
                                          std::size_t chunk) const {
        const LimitKernels& kernels = limit_kernels_for(isa);
        const std::size_t part = num_bytes_ / num_threads_;
        const std::size_t piece = chunk ? chunk : part;  // what is read in one go
        if (streams == 0 || streams > kMaxStreams || piece % (streams * kReadStep) || num_bytes_ % piece)
            throw std::invalid_argument("streams or chunk do not divide the buffer");
        std::vector<std::uint64_t> sums(num_threads_);
        double seconds;
        {
            nb::gil_scoped_release released;
            seconds = timed(num_threads_, [&](std::size_t thread) {
                std::uint64_t sum = 0;  // pieces are dealt out in turn: with chunk 0 each thread gets the one it filled
                for (std::size_t at = thread * piece; at < num_bytes_; at += num_threads_ * piece)
                    sum ^= kernels.read(data_.get() + at / sizeof(std::uint64_t), piece, streams, ahead);
                sums[thread] = sum;
            });
        }
        std::uint64_t sum = 0;
        for (std::uint64_t part_sum : sums) sum ^= part_sum;
        return {seconds, sum};
    }

    std::tuple<double, double, float> fma(const std::string& isa, std::size_t rounds) const {
        const LimitKernels& kernels = limit_kernels_for(isa);
        std::vector<float> sums(num_threads_);
        double seconds;
        {
            nb::gil_scoped_release released;
            seconds = timed(num_threads_, [&](std::size_t thread) { sums[thread] = kernels.fma(rounds, 0.5f, 0.5f); });
        }
        const double flops = static_cast<double>(kernels.flops_per_round) * static_cast<double>(rounds);
        return {seconds, flops * static_cast<double>(num_threads_), sums[0]};
    }

private:
    static std::uint64_t word(std::size_t i) { return (i + 1) * 0x9E3779B97F4A7C15u; }  // no two alike, none zero

    struct Free {
        void operator()(std::uint64_t* data) const { std::free(data); }
    };
    std::size_t num_threads_, num_bytes_ = 0;
    std::unique_ptr<std::uint64_t, Free> data_;
};

}  // namespace

void bind_limits(nb::module_& m) {
    nb::class_<Limits>(m, "Limits", "Measures the machine with all threads at once. Use it through karat.bench.limits.")
        .def(nb::init<std::size_t, std::size_t>(), nb::arg("num_bytes"), nb::arg("num_threads"))
        .def_prop_ro("num_bytes", &Limits::num_bytes, "Size of the buffer, which is a multiple of 2 MiB a thread.")
        .def("read", &Limits::read, nb::arg("isa"), nb::arg("streams"), nb::arg("ahead"), nb::arg("chunk"),
             "Read the buffer once: seconds, and the XOR of its 64-bit words.")
        .def("fma", &Limits::fma, nb::arg("isa"), nb::arg("rounds"),
             "Seconds, FLOPs of all threads, and the sum of the chains of the first.");
}

}  // namespace karat
