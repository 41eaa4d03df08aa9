// Prints digests of what a kernel build computes, bit for bit, from inputs that are the same everywhere.
//   digest ISA THREADS
// Every build on every machine must print the same lines (numeric contract, kernels.h), whatever the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "plan/ops/ops.h"
#include "plan/plan.h"
#include "runtime/isa.h"

namespace {

using namespace karat;

std::uint32_t next(std::uint32_t& state) {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
}

// Between -1 and 1, every one exact.
std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
    std::vector<float> all(count);
    for (float& x : all) x = static_cast<float>(static_cast<std::int32_t>(next(seed)) >> 8) * 0x1p-23f;
    return all;
}

std::uint32_t bits(float x) {
    std::uint32_t all;
    std::memcpy(&all, &x, sizeof all);
    return x != x ? 0x7fc00000 : all;  // a NaN's sign and payload are nobody's promise
}

float number(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

void print(const std::string& name, const float* x, std::size_t count) {
    std::uint64_t digest = 0xcbf29ce484222325;
    for (std::size_t i = 0; i < count; ++i) digest = (digest ^ bits(x[i])) * 0x100000001b3;
    std::printf("%-40s %016llx\n", name.c_str(), static_cast<unsigned long long>(digest));
}

void print(const std::string& name, Plan& plan, Register reg) {
    print(name, plan.floats(reg), plan.rows(reg) * plan.finished_info(reg).width);
}

std::uint16_t small_half(std::uint32_t random) {  // 2^-7 … 2^-5, either sign
    return static_cast<std::uint16_t>((random & 0x8000) | ((8 + random % 3) << 10) | (random >> 20 & 1023));
}

// Where a block has halves that scale it; elsewhere any bits will do.
std::vector<std::size_t> halves_of(Format format) {
    switch (format) {
        case Format::Q4_1:
        case Format::Q5_1:
        case Format::Q4_K:
        case Format::Q5_K: return {0, 2};
        case Format::Q2_K: return {80, 82};
        case Format::Q6_K: return {208};
        default: return {kFormats[static_cast<int>(format)].scale_at};
    }
}

// A sum over `columns` in `count` leaves that cut no `unit`.
std::vector<std::uint32_t> leaves(std::size_t columns, std::size_t count, std::size_t unit) {
    std::vector<std::uint32_t> ends;
    for (std::size_t leaf = 1; leaf <= count; ++leaf)
        ends.push_back(static_cast<std::uint32_t>(leaf * (columns / unit) / count * unit));
    return ends;
}

// A matrix of random blocks: any codes, small scales; stored floats are small as well.
MatrixRef matrix(Format format, std::size_t rows, std::size_t columns, std::uint32_t seed) {
    Matrix shape{format, rows, columns, nullptr};
    const FormatInfo& info = shape.info();
    std::vector<std::uint8_t> stored(rows * (columns / info.block_columns) * info.block_bytes);
    for (std::uint8_t& byte : stored) byte = static_cast<std::uint8_t>(next(seed) >> 11);
    for (std::size_t at = 0; at < stored.size(); at += info.block_bytes) {
        const float value = static_cast<float>(static_cast<std::int32_t>(next(seed)) >> 8) * 0x1p-26f;
        const std::uint16_t brain = static_cast<std::uint16_t>(bits(value) >> 16);
        if (format == Format::F32 || format == Format::E4M3) std::memcpy(&stored[at], &value, 4);
        else if (format == Format::BF16) std::memcpy(&stored[at], &brain, 2);
        else if (format == Format::MXFP4) stored[at] = static_cast<std::uint8_t>(116 + next(seed) % 8);
        else
            for (const std::size_t offset : halves_of(format)) {
                const std::uint16_t half = small_half(next(seed));
                std::memcpy(&stored[at + offset], &half, 2);
            }
    }
    Memory memory(shape.packed_bytes() + kPackedSlack);
    pack_panels(shape, {stored.data(), stored.size() / rows}, 0, shape.num_panels(), memory.bytes());
    shape.data = memory.bytes();
    return std::make_shared<const OwnedMatrix>(OwnedMatrix{shape, std::move(memory)});
}

VectorRef vector(std::size_t size, std::uint32_t seed) {
    return std::make_shared<const Vector>(Vector{numbers(size, seed)});
}

// ---- single kernels -------------------------------------------------------------------------------------------------

// Every sixty-fifth float there is, special ones and denormals among them.
void elementwise(const Kernels& kernels) {
    std::vector<float> x, ones, out;
    for (std::uint64_t i = 0; i < 0x100000000; i += 0x10001) x.push_back(number(static_cast<std::uint32_t>(i)));
    for (int i = -2000; i < 2000; ++i) x.push_back(static_cast<float>(i) * 0.0625f);
    ones.assign(x.size(), 1.0f);
    out.resize(x.size());
    kernels.silu_mul(x.data(), ones.data(), out.data(), x.size());
    print("silu", out.data(), out.size());
    kernels.gelu_mul(x.data(), ones.data(), out.data(), x.size());
    print("gelu", out.data(), out.size());
    kernels.soft_cap(x.data(), 30.0f, out.data(), x.size());
    print("soft cap", out.data(), out.size());
    kernels.clamped_mul(x.data(), ones.data(), 7.0f, 1.702f, out.data(), x.size());
    print("clamped, of gates", out.data(), out.size());
    kernels.clamped_mul(ones.data(), x.data(), 7.0f, 1.702f, out.data(), x.size());
    print("clamped, of ups", out.data(), out.size());
    for (const std::size_t columns : {std::size_t{1}, std::size_t{8}}) {
        const std::size_t n = x.size() / columns * columns;  // the same gates, of an element or of 8
        kernels.sigmoid_mul(ones.data(), x.data(), out.data(), n, columns);
        print("sigmoid by " + std::to_string(columns), out.data(), n);
    }
    for (const bool renormalised : {false, true}) {
        const std::size_t experts = 64, chosen = 9, rows = x.size() / experts;
        std::vector<std::int32_t> ids(rows * chosen);
        std::vector<float> weights(rows * chosen), scratch(3 * experts), biases = numbers(experts, 9);
        for (const bool by_sigmoid : {false, true}) {
            Routing how{.chosen = chosen, .by_sigmoid = by_sigmoid, .renormalised = renormalised, .scale = 1.5f};
            for (const std::size_t groups : {0, 1, 8}) {
                how.groups = groups > 1 ? groups : 1;
                how.chosen_groups = groups > 1 ? 3 : 1;
                how.bias = how.scales = groups > 0 ? biases.data() : nullptr;
                kernels.route(x.data(), rows, experts, how, ids.data(), weights.data(), scratch.data());
                for (std::size_t i = 0; i < ids.size(); ++i) weights[i] += static_cast<float>(ids[i]);
                print("route", weights.data(), weights.size());
            }
        }
    }
    kernels.sigmoid(x.data(), out.data(), x.size());
    print("sigmoid", out.data(), out.size());
    kernels.mul(x.data(), x.data(), out.data(), x.size());
    print("mul", out.data(), out.size());
    kernels.scale(x.data(), -0.3f, out.data(), x.size());
    print("scale", out.data(), out.size());
    const std::vector<float> of_pairs = numbers(5 * 1003, 5), by = numbers(5, 7);
    const float* pairs[5];
    for (std::size_t i = 0; i < 5; ++i) pairs[i] = of_pairs.data() + i * 1003;
    const std::uint32_t ends[] = {0, 2, 2, 5};
    kernels.sum_of_experts(pairs, by.data(), ends, 4, 1003, out.data());
    print("sum of experts", out.data(), 1003);
    for (float& value : x) value = std::fabs(value) < 1e15f ? value : 1.5f;
    kernels.rms_norm(x.data(), numbers(x.size(), 3).data(), 1e-6, out.data(), 1, x.size());
    print("norm", out.data(), out.size());
    const float total = kernels.square_sum(x.data(), 1003) + kernels.square_sum(x.data() + 1003, 5);
    kernels.part_norm(x.data(), numbers(1008, 4).data(), total, 3000, 1e-6, out.data(), 1008);
    print("norm of a part", out.data(), 1008);
}

// A convolution, decays of every kind of number, and a state over 40 tokens; of a head of 200 columns, which end in the
// middle of a strip and of a vector.
void recurrence(const Kernels& kernels) {
    constexpr std::size_t kTokens = 40, kChannels = 83, kTaps = 4, kKeyDim = 24, kValueDim = 200, kPadded = 208;
    std::vector<float> out(kTokens * kValueDim);
    const std::vector<float> x = numbers(kTokens * kChannels, 81), before = numbers((kTaps - 1) * kChannels, 82);
    const std::vector<float> filters = numbers(kTaps * kChannels, 83), bias = numbers(kChannels, 84);
    for (const bool silu : {false, true}) {
        kernels.causal_conv({.x = x.data(),
                             .before = before.data(),
                             .weight = filters.data(),
                             .bias = silu ? bias.data() : nullptr,
                             .taps = kTaps,
                             .channels = kChannels,
                             .silu = silu,
                             .out = out.data()},
                            0, kTokens);
        print("convolution", out.data(), kTokens * kChannels);
    }
    std::vector<float> a, decays, rates, zeros;
    for (int i = -4000; i < 4000; ++i) a.push_back(static_cast<float>(i) * 0x1p-7f);
    for (const bool of_log : {false, true}) {
        rates.assign(a.size(), of_log ? 0.7f : -0.3f);
        zeros.assign(a.size(), 0.0f);
        decays.resize(a.size());
        kernels.decay(a.data(), zeros.data(), rates.data(), of_log, decays.data(), 1, a.size());
        print("decay", decays.data(), decays.size());
    }
    kernels.l2_norm(x.data(), 1e-6, 0.125f, out.data(), kTokens, kChannels);
    print("length 1", out.data(), kTokens * kChannels);
    const std::vector<float> q = numbers(kTokens * kKeyDim, 85), k = numbers(kTokens * kKeyDim, 86);
    const std::vector<float> v = numbers(kTokens * kValueDim, 87), beta = numbers(kTokens, 88);
    std::vector<float> decay(kTokens, 0.9f), state(kKeyDim * kPadded, 0.0f);
    const DeltaRuleArgs args{.q = q.data(),
                             .k = k.data(),
                             .v = v.data(),
                             .decay = decay.data(),
                             .beta = beta.data(),
                             .out = out.data(),
                             .key_heads = 1,
                             .heads = 1,
                             .k_dim = kKeyDim,
                             .v_dim = kValueDim};
    for (std::size_t strip = 0; strip * kStateColumns < kValueDim; ++strip) {
        float* const held = state.data() + strip * kStateColumns * kKeyDim;
        kernels.delta_rule(args, 0, 0, strip, 0, 17, held, held);
        kernels.delta_rule(args, 0, 0, strip, 17, kTokens, held, held);
    }
    print("delta rule", out.data(), kTokens * kValueDim);
    print("state", state.data(), state.size());
}

// All values of two bytes.
void stored_halves(const Kernels& kernels) {
    for (const Format format : {Format::F16, Format::BF16}) {
        Matrix shape{format, 512, 128, nullptr};
        std::vector<std::uint16_t> stored(shape.rows * shape.columns);
        for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint16_t>(i);
        const Memory memory(shape.packed_bytes() + kPackedSlack);
        pack_panels(shape, {reinterpret_cast<const std::uint8_t*>(stored.data()), 2 * shape.columns}, 0,
                    shape.num_panels(), memory.bytes());
        shape.data = memory.bytes();
        std::vector<std::int32_t> ids(shape.rows);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
        std::vector<float> out(stored.size());
        kernels.embedding(shape, ids.data(), ids.size(), out.data());
        print(std::string("stored ") + shape.info().name, out.data(), out.size());
    }
}

using Numbers = std::vector<std::int32_t>;

// Runs a step of one cache group.
void run_step(Plan& plan, std::size_t block_size, const Numbers& ids, const Numbers& positions, const Numbers& starts,
              const Numbers& contexts, const Numbers& wanted, const Numbers& slots, const Numbers& tables) {
    const std::size_t seqs = contexts.size(), max_blocks = seqs ? tables.size() / seqs : 0;
    Numbers batch;
    for (const std::size_t count : {ids.size(), seqs, wanted.size(), block_size, std::size_t{1}, max_blocks})
        batch.push_back(static_cast<std::int32_t>(count));
    const Numbers none(seqs, -1);  // states
    for (const Numbers* column : {&ids, &positions, &starts, &contexts, &wanted, &none, &none, &slots, &tables})
        batch.insert(batch.end(), column->begin(), column->end());
    plan.run(StepInput(batch.data(), batch.size()));
}

void linear(const Kernels& kernels, const IntegerKernels& integers, int threads) {
    struct Case { std::size_t rows, columns, leaves; };
    for (int format = 0; format < kNumFormats; ++format)
        for (const Case& c : {Case{100, 288, 1}, Case{7, 32, 1}, Case{64, 512, 8}, Case{20, 256, 1}}) {
            const std::size_t block = kFormats[format].block_columns;
            if (c.columns % block != 0) continue;
            const MatrixRef weight = matrix(static_cast<Format>(format), c.rows, c.columns, 7);
            Plan plan(kernels, integers, threads);
            const Register in = plan.input(c.columns, Rows::tokens);
            const Register out =
                record::linear(plan, in, {weight}, {vector(c.rows, 5)}, leaves(c.columns, c.leaves, block))[0];
            plan.finish({40, 0, 1, 1}, {in, out});
            for (const std::size_t tokens : {1, 3, 19, 40}) {
                const std::vector<float> x = numbers(tokens * c.columns, 11);
                std::memcpy(plan.floats(in), x.data(), x.size() * sizeof(float));
                const std::vector<std::int32_t> zeros(tokens, 0);
                run_step(plan, 1, zeros, zeros, {0}, {}, {}, zeros, {});
                print(std::string("linear ") + weight->matrix.info().name + " " + std::to_string(c.rows) + " x " +
                          std::to_string(c.columns) + ", tokens " + std::to_string(tokens),
                      plan, out);
            }
        }
}

// ---- a small model --------------------------------------------------------------------------------------------------

struct Sequence {
    std::size_t done, context;  // tokens before the step and with it
    std::vector<std::int32_t> blocks;
};

// Steps over sequences that end at given lengths; blocks are given out in an order that jumps about.
struct Steps {
    std::size_t block_size, num_blocks = 1, max_blocks;
    std::vector<Sequence> sequences;

    std::int32_t slot(const Sequence& s, std::size_t position) const {
        return s.blocks[position / block_size] * static_cast<std::int32_t>(block_size) +
               static_cast<std::int32_t>(position % block_size);
    }

    Steps(std::size_t block_size, const std::vector<std::size_t>& lengths) : block_size(block_size) {
        std::size_t longest = 0;
        for (const std::size_t length : lengths) {
            sequences.push_back({0, 0, {}});
            for (std::size_t block = 0; block * block_size < length; ++block)
                sequences.back().blocks.push_back(static_cast<std::int32_t>(num_blocks++));
            longest = length > longest ? length : longest;
        }
        const auto last = static_cast<std::int32_t>(num_blocks);
        for (Sequence& s : sequences)
            for (std::int32_t& block : s.blocks) block = last - block;  // 1 … num_blocks - 1, falling
        max_blocks = (longest + block_size - 1) / block_size;
    }

    void run(Plan& plan, const std::vector<std::size_t>& new_tokens) {
        std::vector<std::int32_t> ids, positions, slots, starts{0}, contexts, wanted, tables;
        for (std::size_t i = 0; i < sequences.size(); ++i) {
            Sequence& s = sequences[i];
            s.done = s.context;
            s.context += new_tokens[i];
            for (std::size_t p = s.done; p < s.context; ++p) {
                ids.push_back(static_cast<std::int32_t>((p * 37 + i * 11) % 90));
                positions.push_back(static_cast<std::int32_t>(p));
                slots.push_back(slot(s, p));
            }
            starts.push_back(static_cast<std::int32_t>(ids.size()));
            contexts.push_back(static_cast<std::int32_t>(s.context));
            wanted.push_back(static_cast<std::int32_t>(ids.size()) - 1);
            std::vector<std::int32_t> row = s.blocks;
            row.resize(max_blocks, -1);
            tables.insert(tables.end(), row.begin(), row.end());
        }
        run_step(plan, block_size, ids, positions, starts, contexts, wanted, slots, tables);
    }
};

void model(const Kernels& kernels, const IntegerKernels& integers, int threads, CacheType type, std::size_t block_size,
           std::size_t window) {
    constexpr std::size_t kHidden = 96, kHeads = 4, kKvHeads = 2, kDim = 24, kLayers = 2, kVocab = 90;
    const std::vector<std::size_t> lengths{300, 40, 10};
    Steps steps(block_size, lengths);
    auto table = std::make_shared<RopeTable>();
    *table = {512, kDim, numbers(512 * kDim / 2, 21), numbers(512 * kDim / 2, 22)};
    const auto owner = std::make_shared<const OwnedCache>(type, kLayers, steps.num_blocks * block_size, kKvHeads, kDim);

    Plan plan(kernels, integers, threads);
    std::uint32_t seed = 100;
    const std::vector<std::uint32_t> one_leaf{kHidden};
    const auto weight = [&](Format format, std::size_t rows, std::size_t columns) {
        return matrix(format, rows, columns, ++seed);
    };
    Register x = record::embedding(plan, weight(Format::F32, kVocab, kHidden));
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
        // Each in a statement of its own: compilers evaluate a call's arguments in the order they like.
        const std::vector<MatrixRef> projections{weight(Format::Q4_0, kHeads * kDim, kHidden),
                                                 weight(Format::Q8_0, kKvHeads * kDim, kHidden),
                                                 weight(Format::F16, kKvHeads * kDim, kHidden)};
        const std::vector<MatrixRef> gate_up{weight(Format::Q8_0, 160, kHidden), weight(Format::Q4_0, 160, kHidden)};
        const MatrixRef o = weight(Format::BF16, kHidden, kHeads * kDim), down = weight(Format::F16, kHidden, 160);
        const VectorRef q_bias = vector(kHeads * kDim, ++seed), q_norm = vector(kDim, ++seed);
        const VectorRef before = vector(kHidden, ++seed), between = vector(kHidden, ++seed);

        const auto qkv = record::linear(plan, record::rms_norm(plan, x, before, 1e-6, false), projections,
                                        {q_bias, nullptr, nullptr}, one_leaf);
        const Register q = record::rope(plan, record::rms_norm(plan, qkv[0], q_norm, 1e-6, false), table, kDim);
        const auto cache = std::make_shared<const LayerCache>(LayerCache{owner, layer, 0, layer});
        record::kv_write(plan, record::rope(plan, qkv[1], table, kDim), qkv[2], cache);
        const Register attended = record::attention(plan, q, cache, 0.2f, window, kHeads / kKvHeads, 0,
                                                    window ? vector(kHeads, 9) : nullptr, window ? 2.0f : 0.0f);
        x = record::add(plan, x, record::linear(plan, attended, {o}, {nullptr}, leaves(kHeads * kDim, 4, kDim))[0]);
        const auto both = record::linear(plan, record::rms_norm(plan, x, between, 1e-6, false), gate_up,
                                         {nullptr, nullptr}, one_leaf);
        x = record::add(
            plan, x,
            record::linear(plan, record::silu_mul(plan, both[0], both[1]), {down}, {nullptr}, leaves(160, 8, 1))[0]);
    }
    const Register wanted = record::select_rows(plan, x);
    const Register last = record::rms_norm(plan, wanted, vector(kHidden, ++seed), 1e-6, false);
    const Register logits = record::linear(plan, last, {weight(Format::F32, kVocab, kHidden)}, {nullptr}, one_leaf)[0];
    plan.finish({330, 3, 3, 512}, {logits, x});

    const std::string name = std::string("model, cache ") +
                             (type == CacheType::f32   ? "f32"
                              : type == CacheType::f16 ? "f16"
                                                       : "bf16") +
                             ", block " + std::to_string(block_size) + ", ";
    int step = 0;
    // Prompts in uneven pieces, then one token each (in splits and merged), then both kinds together.
    for (const std::vector<std::size_t>& tokens :
         {std::vector<std::size_t>{290, 30, 1}, {5, 1, 1}, {1, 1, 1}, {1, 4, 1}}) {
        steps.run(plan, tokens);
        print(name + "step " + std::to_string(++step), plan, logits);
        print(name + "step " + std::to_string(step) + " hidden", plan, x);
    }
}

void fits(const FitKernels& kernels) {
    constexpr std::size_t kCount = 64 * 32;
    std::vector<float> values = numbers(kCount, 71);
    std::fill_n(values.begin() + 32, 32, 0.0f);  // a group of nothing
    std::vector<float> scales(kCount / 16), minimums(kCount / 16);
    std::vector<std::int8_t> integers(kCount);
    const auto show = [&](const std::string& name) {
        print("fit " + name + " scales", scales.data(), scales.size());
        print("fit " + name + " integers", std::vector<float>(integers.begin(), integers.end()).data(), kCount);
    };
    for (const float largest : {3.0f, 15.0f, 31.0f}) {
        const bool absolute = largest == 3.0f;
        kernels.with_minimum(values.data(), kCount / (absolute ? 16 : 32), largest, -0.5f, 0.1f, 15, absolute,
                             scales.data(), minimums.data(), integers.data());
        show("to " + std::to_string(static_cast<int>(largest)));
        print("fit minimums", minimums.data(), minimums.size());
    }
    for (const float largest : {4.0f, 32.0f}) {
        kernels.symmetric(values.data(), kCount / 16, largest, scales.data(), integers.data());
        show("symmetric, " + std::to_string(static_cast<int>(largest)));
    }
    kernels.in_turn(values.data(), kCount / 16, 4.0f, scales.data(), integers.data());
    show("in turn");
    const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    kernels.levels(values.data(), kCount / 32, levels, 7, scales.data());
    std::vector<float> inverses(kCount / 32);
    for (std::size_t i = 0; i < inverses.size(); ++i) inverses[i] = scales[i] == 0 ? 0 : 1 / scales[i];
    kernels.nearest_levels(values.data(), kCount / 32, levels, inverses.data(), integers.data());
    show("levels");
}

// These are compiled once, not for each build: the same bits are asked of every machine and compiler.
void sampling() {
    const std::vector<float> x = numbers(5003, 72);
    const float top = x[argmax(x.data(), x.size())];
    std::vector<float> found{top, static_cast<float>(finite_argmax(x.data(), x.size()))};
    for (const std::int64_t index : largest(x.data(), x.size(), 40)) found.push_back(static_cast<float>(index));
    print("sampling, searches", found.data(), found.size());
    std::vector<double> weights(x.size() + 1);
    exp_weights(x.data(), x.size(), top, 0.7, weights.data());
    weights.back() = exp_sum(x.data(), x.size(), top);
    std::vector<float> halves(2 * weights.size());  // of each double
    std::memcpy(halves.data(), weights.data(), weights.size() * sizeof(double));
    print("sampling, exp", halves.data(), halves.size());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: digest ISA THREADS; here run:");
        for (const std::string& isa : supported_isas()) std::fprintf(stderr, " %s", isa.c_str());
        std::fprintf(stderr, "\n");
        return 2;
    }
    const Kernels& kernels = kernels_for(argv[1]);
    const IntegerKernels& integers = integer_kernels_for(argv[1]);
    const int threads = std::atoi(argv[2]);
    elementwise(kernels);
    recurrence(kernels);
    stored_halves(kernels);
    fits(fit_kernels_for(argv[1]));
    sampling();
    linear(kernels, integers, threads);
    model(kernels, integers, threads, CacheType::f32, 16, 0);
    model(kernels, integers, threads, CacheType::f16, 16, 0);
    model(kernels, integers, threads, CacheType::f16, 5, 40);
    model(kernels, integers, threads, CacheType::bf16, 16, 60);
}
