// Linear layers by tiles on several threads at once, each interrupted by signals whose handler has a layer of its own:
// every layer has the bits of the generic build, and no call leaves tiles in use. By a processor's own tiles, or
// emulated.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "amx_emulator.h"
#include "check.h"
#include "contract/kernels.h"

namespace {

using namespace karat;

constexpr int kThreads = 3, kRounds = 2, kSignal = SIGUSR1;

struct alignas(64) Line { std::uint8_t bytes[64]; };
std::vector<Line> lines(std::size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

struct Kind {
    Format format;
    Activations activations;
};
// One tile for both digits, one for each, digits side by side, code - 16, and all widths: tiles of different shapes.
constexpr Kind kKinds[] = {{Format::Q4_0, Activations::int16}, {Format::Q6_K, Activations::int16},
                           {Format::Q8_0, Activations::int24}, {Format::Q5_1, Activations::int16},
                           {Format::Q4_K, Activations::int8},  {Format::IQ4_XS, Activations::int16}};
constexpr int kNumKinds = sizeof kKinds / sizeof *kKinds;

class Layer {
public:
    Layer(Kind kind, std::size_t rows, std::size_t tokens, std::uint32_t seed)
        : kind_(kind), tokens_(tokens), weight_{kind.format, rows, kColumns, nullptr},
          packed_(lines(weight_.packed_bytes() + kPackedSlack)), out_(tokens * rows) {
        std::vector<std::uint8_t> stored(rows * (kColumns / weight_.info().block_columns) * weight_.info().block_bytes);
        for (std::uint8_t& byte : stored) byte = static_cast<std::uint8_t>(next(seed) & 0x3f);  // scales below 2
        weight_.data = packed_[0].bytes;
        pack_panels(weight_, {stored.data(), stored.size() / rows}, 0, weight_.num_panels(), packed_[0].bytes);
        std::vector<float> x(tokens * kColumns);
        for (float& number : x) number = static_cast<float>(static_cast<std::int32_t>(next(seed))) * 0x1p-30f;
        prepare(generic::integer_kernels, x);
        compute(generic::integer_kernels);
        wanted_ = out_;
        prepare(avx512_amx::integer_kernels, x);
    }

    // Nothing is allocated: handlers of signals call it.
    void check() {
        std::memset(out_.data(), 0xff, out_.size() * sizeof(float));
        compute(avx512_amx::integer_kernels);
        CHECK(!emulated::in_use());
        CHECK(std::memcmp(out_.data(), wanted_.data(), out_.size() * sizeof(float)) == 0);
    }

private:
    static constexpr std::size_t kColumns = 512;

    static std::uint32_t next(std::uint32_t& seed) {
        seed = seed * 1664525 + 1013904223;
        return seed ^ seed >> 15;
    }

    void prepare(const IntegerKernels& kernels, const std::vector<float>& x) {
        digits_ = lines(tokens_ * kernels.row_bytes(kind_.activations, kColumns) + kDigitSlack);
        scratch_ = lines(kernels.scratch_bytes());
        kernels.quantise(kind_.activations, x.data(), tokens_, kColumns, 0, tokens_, digits_[0].bytes);
    }

    void compute(const IntegerKernels& kernels) {
        const auto end = static_cast<std::uint32_t>(kColumns);
        const LinearArgs args{.weight = &weight_,
                              .x = nullptr,
                              .x_stride = 0,
                              .tokens = tokens_,
                              .out = out_.data(),
                              .out_stride = weight_.rows,
                              .bias = nullptr,
                              .residual = nullptr,
                              .leaf_ends = &end,
                              .num_leaves = 1,
                              .activations = kind_.activations,
                              .digits = digits_[0].bytes,
                              .digits_rows = tokens_,
                              .first_row = 0};
        kernels.linear(args, 0, weight_.num_panels(), reinterpret_cast<float*>(scratch_.data()));
    }

    Kind kind_;
    std::size_t tokens_;
    Matrix weight_;
    std::vector<Line> packed_, digits_, scratch_;
    std::vector<float> out_, wanted_;
};

thread_local Layer* of_handler;
thread_local int num_signals = 0;
std::atomic<int> at_work{kThreads};

void on_signal(int) {
    const emulated::AroundHandler around;
    CHECK(!emulated::in_use());
    of_handler->check();
    ++num_signals;
}

void work(int thread) {
    std::vector<Layer> layers;
    for (int i = 0; i < kNumKinds; ++i) layers.emplace_back(kKinds[(i + thread) % kNumKinds], 82, 20, thread * 100 + i);
    for (Layer& layer : layers) {  // the kind that its handlers have is another one
        const int other = static_cast<int>(&layer - layers.data() + 1 + thread) % kNumKinds;
        Layer small(kKinds[other], 16, 16, 7);
        of_handler = &small;
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, kSignal);
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        for (int round = 0; round < kRounds; ++round) layer.check();
        pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    }
    at_work.fetch_sub(1);
    CHECK(num_signals > 0);
}

}  // namespace

int main() {
    CHECK(emulated::begin());
    CHECK(avx512_amx::tiles_multiply());
    CHECK(!emulated::in_use());

    const std::size_t before = emulated::num_instructions();
    Layer(kKinds[0], 82, 8, 1).check();  // few rows are another build's
    CHECK(emulated::num_instructions() == before);

    struct sigaction action{};
    action.sa_handler = on_signal;
    CHECK(sigaction(kSignal, &action, nullptr) == 0);
    emulated::interrupt_every(97, kSignal);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, kSignal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // threads begin so

    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
    while (emulated::num_instructions() == 0 && at_work.load() > 0) {  // a processor's own tiles
        for (std::thread& thread : threads) pthread_kill(thread.native_handle(), kSignal);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%zu instructions on tiles were emulated\n", emulated::num_instructions());
}
