// The methods of a device (device_module.cpp): the kernels of a GPU, one method a launch or a few.
//
// karat.ops.device, which alone calls them, has checked what the ops' contracts ask. Here is checked what memory needs:
// that arrays are as long as their numbers say. The columns of a step lie on the device: who uploads them has checked
// what they point to.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "python/device_arrays.h"

namespace karat {

class DeviceApi {
public:
    explicit DeviceApi(unsigned number) : handle_(gpu::open_device(number)), device_(*handle_) {}

    const std::shared_ptr<gpu::Device>& handle() const { return handle_; }
    std::string name() const { return gpu::name_of(device_); }
    std::size_t free_bytes() { return gpu::free_bytes(device_); }

    template <class T>
    Array array(In<T> from) {
        Array made = empty(Lengths(from.shape_ptr(), from.shape_ptr() + from.ndim()), std::is_same_v<T, float>);
        write(made, from);
        return made;
    }
    // float32 of any values.
    Array floats(const Lengths& shape) const { return empty(shape); }
    template <class T>
    void write(const Array& to, In<T> from) {
        require(to.size() == from.size() && to.is_float() == std::is_same_v<T, float>, "an array to write to");
        if (to.size()) gpu::upload(device_, {to.data(), from.data(), to.bytes()});
    }
    void fill(const Array& to, int byte) { gpu::fill(device_, to.data(), byte, to.bytes()); }
    void copy(const Array& to, const Array& from) {
        require(to.bytes() == from.bytes() && to.bytes() % 16 == 0, "an array to copy to");
        gpu::copy(device_, from.data(), to.data(), narrow(to.bytes() / 16));
    }
    // float32, in memory that a device writes fast.
    nb::ndarray<nb::numpy, float, nb::ndim<1>> host_array(std::size_t size) {
        void* const at = gpu::allocate_host(device_, std::max<std::size_t>(1, size) * sizeof(float));
        return {at, {size}, nb::capsule(at, [](void* p) noexcept { gpu::release_host(p); })};
    }

    void begin_recording() { gpu::begin_recording(device_); }
    Recorded end_recording() { return {handle_, gpu::end_recording(device_)}; }

    // The digits of rows of x, as layers on blocks read them.
    Array quantise(const Array& x, int activations) {
        require(x.ndim() == 2 && x.shape(1) % kDigitColumns == 0, "x");
        Array made = digits_of(x.shape(0), x.shape(1), activations);
        gpu::quantise(device_, width_of(activations), x.floats(), narrow(x.shape(0)), narrow(x.shape(1)),
                      bytes_of(made));
        return made;
    }

    // Layers of one x. `digits` are those of x, `activations` their width: layers on blocks read them, others x. A
    // residual is for one layer alone.
    using Matrices = std::vector<const DeviceMatrix*>;
    std::vector<Array> linears(const Matrices& matrices, const Array& x, const std::optional<Array>& digits,
                               int activations, const std::vector<int>& leaves,
                               const std::vector<std::optional<Array>>& biases, const std::optional<Array>& residual) {
        require(matrices.size() == biases.size() && (!residual || matrices.size() == 1), "matrices");
        require_leaves(leaves);
        gpu::LinearShape shape{};
        shape.columns = leaves.back();
        shape.tokens = narrow(x.shape(0));
        shape.residual = residual ? residual->floats() : nullptr;
        shape.num_leaves = narrow(leaves.size());
        std::copy(leaves.begin(), leaves.end(), shape.leaf_ends);
        std::vector<Array> made;
        for (std::size_t i = 0; i < matrices.size(); ++i) {
            const Matrix& matrix = matrices[i]->matrix();
            require(x.ndim() == 2 && x.shape(1) == matrix.columns && leaves.back() == matrices[i]->columns(), "x");
            for (const int end : leaves) require(end % narrow(matrix.info().block_columns) == 0, "leaves");
            made.push_back(empty({x.shape(0), matrix.rows}));
            require(!biases[i] || biases[i]->size() == matrix.rows, "bias");
            require(!residual || residual->size() == made.back().size(), "residual");
            shape.add(matrices[i]->layer(made.back().floats(), biases[i] ? biases[i]->floats() : nullptr));
            const bool ends = i + 1 == matrices.size() || matrices[i + 1]->matrix().format != matrix.format;
            if (!ends && shape.num_layers < gpu::kMostBeside) continue;
            launch_layers(matrix, shape, x, digits, activations);
            shape.num_layers = 0;
        }
        return made;
    }

    Array embedding(const DeviceMatrix& table, const Array& ids) {
        Array out = empty({ids.size(), table.matrix().columns});
        gpu::embedding(device_, table.matrix().format, table.shape(narrow(ids.size()), out.floats()), ids.integers());
        return out;
    }
    Array select_rows(const Array& x, const Array& rows) {
        require(x.ndim() == 2, "x");
        Array out = empty({rows.size(), x.shape(1)});
        gpu::select_rows(device_, x.floats(), rows.integers(), narrow(rows.size()), narrow(x.shape(1)), out.floats());
        return out;
    }

    // With activations, the width of integers, the digits of the result come too: rows are then those of the weight.
    using WithDigits = std::pair<Array, std::optional<Array>>;
    WithDigits rms_norm(const Array& x, const Array& weight, double eps, int activations) {
        require(weight.size() > 0 && x.size() % weight.size() == 0, "x");
        WithDigits made = with_digits(x.shape(), weight.size(), activations);
        gpu::rms_norm(device_, x.floats(), weight.floats(), static_cast<float>(eps), narrow(x.size() / weight.size()),
                      narrow(weight.size()), made.first.floats(), digits_too(made, activations));
        return made;
    }
    Array l2_norm(const Array& x, double eps, float factor) {
        require(x.ndim() > 0 && x.shape(x.ndim() - 1) > 0, "x");
        Array out = like(x);
        const std::size_t n = x.shape(x.ndim() - 1);
        gpu::l2_norm(device_, x.floats(), static_cast<float>(eps), factor, narrow(x.size() / n), narrow(n),
                     out.floats());
        return out;
    }
    Array square_sums(const Array& q, const Array& k, const std::vector<int>& q_leaves,
                      const std::vector<int>& k_leaves, int k_first) {
        require_leaves(q_leaves);
        require_leaves(k_leaves);
        require(q_leaves.size() == k_leaves.size() && k_first >= 0 && k_first <= k_leaves[0], "leaves");
        const std::size_t rows = q.shape(0);
        for (const auto& [x, leaves] : {std::pair(&q, &q_leaves), std::pair(&k, &k_leaves)})
            require(x->shape(0) == rows && x->size() == rows * static_cast<std::size_t>(leaves->back()), "leaves");
        Array out = empty({rows, 2});
        gpu::SquareSumsShape shape{.parts = {{q.floats(), 0, {}}, {k.floats(), k_first, {}}},
                                   .rows = narrow(rows),
                                   .num_leaves = narrow(q_leaves.size()),
                                   .out = out.floats()};
        std::copy(q_leaves.begin(), q_leaves.end(), shape.parts[0].ends);
        std::copy(k_leaves.begin(), k_leaves.end(), shape.parts[1].ends);
        gpu::square_sums(device_, shape);
        return out;
    }
    Array part_norm(const Array& x, const Array& squares, const Array& weight, double eps, int part,
                    std::size_t count) {
        const std::size_t rows = x.shape(0);
        require(weight.size() > 0 && x.size() == rows * weight.size() && weight.size() <= count, "x");
        require(squares.size() == 2 * rows && (part == 0 || part == 1), "squares");
        Array out = like(x);
        gpu::part_norm(device_, x.floats(), squares.floats(), weight.floats(), static_cast<float>(eps), part,
                       narrow(count), narrow(rows), narrow(weight.size()), out.floats());
        return out;
    }
    WithDigits silu_mul(const Array& gate, const Array& up, int activations) {
        return gated(gpu::silu_mul, gate, up, activations);
    }
    WithDigits gelu_mul(const Array& gate, const Array& up, int activations) {
        return gated(gpu::gelu_mul, gate, up, activations);
    }
    Array sigmoid_mul(const Array& x, const Array& gate) {
        require(gate.size() > 0 && x.size() % gate.size() == 0, "gate");
        Array out = like(x);
        gpu::sigmoid_mul(device_, x.floats(), gate.floats(), narrow(x.size()), narrow(x.size() / gate.size()),
                         out.floats());
        return out;
    }
    Array add(const Array& x, const Array& y) {
        require(x.size() == y.size(), "y");
        Array out = like(x);
        gpu::add(device_, x.floats(), y.floats(), narrow(x.size()), out.floats());
        return out;
    }
    Array mul(const Array& x, const Array& y) {
        require(x.size() == y.size(), "y");
        Array out = like(x);
        gpu::mul(device_, x.floats(), y.floats(), narrow(x.size()), out.floats());
        return out;
    }
    Array sigmoid(const Array& x) {
        Array out = like(x);
        gpu::sigmoid(device_, x.floats(), narrow(x.size()), out.floats());
        return out;
    }
    Array scale_by(const Array& x, const Array& weight) {
        require(weight.size() == 1, "weight");
        Array out = like(x);
        gpu::scale_by(device_, x.floats(), weight.floats(), narrow(x.size()), out.floats());
        return out;
    }
    Array scale(const Array& x, float factor) {
        Array out = like(x);
        gpu::scale(device_, x.floats(), factor, narrow(x.size()), out.floats());
        return out;
    }

    Array soft_cap(const Array& x, float cap) {
        Array out = like(x);
        gpu::soft_cap(device_, x.floats(), cap, narrow(x.size()), out.floats());
        return out;
    }
    // Parts of `sizes` of each row, whose `groups` equal pieces have their share of each.
    std::vector<Array> split(const Array& x, const std::vector<std::size_t>& sizes, std::size_t groups) {
        require(x.ndim() > 0 && x.shape(0) > 0 && groups > 0, "x");
        const std::size_t rows = x.shape(0), row = x.size() / rows;
        require(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) == row, "sizes");
        std::vector<Array> made;
        std::size_t first = 0;
        for (const std::size_t size : sizes) {
            require(size > 0 && size % groups == 0, "sizes");
            made.push_back(empty({rows, size}));
            gpu::split_part(device_, x.floats(), narrow(row / groups), narrow(first), narrow(size / groups),
                            narrow(rows * size), made.back().floats());
            first += size / groups;
        }
        return made;
    }

    Array rope(const Array& x, const Array& positions, const Array& cos, const Array& sin) {
        Array out = like(x);
        gpu::rope(device_, rope_shape(x, positions, cos, sin, &out));
        return out;
    }

    // Ids and weights, each [rows, chosen]; `bias` and `scales` are of the experts.
    std::pair<Array, Array> route(const Array& logits, std::size_t chosen, bool by_sigmoid, bool renormalised,
                                  std::size_t groups, std::size_t chosen_groups, float outside, float plus, float least,
                                  float scale, const std::optional<Array>& bias, const std::optional<Array>& scales) {
        require(logits.ndim() == 2 && chosen >= 1 && chosen <= logits.shape(1), "logits");
        require(groups >= 1 && logits.shape(1) % groups == 0 && chosen_groups <= groups, "groups");
        const std::size_t experts = logits.shape(1);
        require((!bias || bias->size() == experts) && (!scales || scales->size() == experts), "bias and scales");
        const Lengths shape{logits.shape(0), chosen};
        std::pair<Array, Array> made{empty(shape, false), empty(shape)};
        const Array scratch = empty({logits.shape(0), 3, experts});
        const Routing how{chosen,
                          by_sigmoid,
                          renormalised,
                          groups,
                          chosen_groups,
                          outside,
                          plus,
                          least,
                          scale,
                          bias ? bias->floats() : nullptr,
                          scales ? scales->floats() : nullptr};
        gpu::route(device_, {logits.floats(), narrow(logits.shape(0)), narrow(experts), how, scratch.floats(),
                             made.first.integers(), made.second.floats()});
        return made;
    }

    // Leaves are ends among the columns of `downs`, or among the matrices, of which the first is that of id `first`.
    // `biases` are none, or those of gates, ups and downs, each [experts, rows] or absent. Of products that wait for
    // their sum there are at most `most_floats`, and at least a row's.
    Array experts(const Array& x, const Array& ids, const Array& weights, const MatrixTable& gates,
                  const MatrixTable& ups, const MatrixTable& downs, int first, const std::vector<int>& leaves,
                  bool by_columns, int activations, const std::vector<std::optional<Array>>& biases,
                  std::optional<std::pair<float, float>> clamp, bool by_gelu, std::size_t most_floats) {
        const std::size_t inner = gates.first().matrix().rows, width = x.shape(1);
        require(x.ndim() == 2 && ids.ndim() == 2 && ids.shape(0) == x.shape(0) && weights.size() == ids.size(), "x");
        require(ups.count() == gates.count() && downs.count() == gates.count(), "experts");
        for (const MatrixTable* into : {&gates, &ups})
            require(into->first().matrix().rows == inner && into->first().matrix().columns == width, "gates and ups");
        const Matrix& down = downs.first().matrix();
        require(down.rows == width && down.columns == inner, "downs");
        require_leaves(leaves);
        require(leaves.back() == (by_columns ? narrow(inner) : gates.count()), "leaves");
        for (const int end : by_columns ? leaves : std::vector<int>{})
            require(end % narrow(down.info().block_columns) == 0, "leaves");
        require(biases.empty() || biases.size() == 3, "biases");
        const auto bias_of = [&](std::size_t number, std::size_t rows) -> const float* {
            if (biases.empty() || !biases[number]) return nullptr;
            require(biases[number]->size() == static_cast<std::size_t>(gates.count()) * rows, "biases");
            return biases[number]->floats();
        };
        gpu::ExpertLeaves of_sum{by_columns, narrow(leaves.size()), {}};
        std::copy(leaves.begin(), leaves.end(), of_sum.ends);
        const int per_row = narrow(ids.shape(1));
        // Products of each pair of `chosen` and a matrix of its expert, which reads row pair / of_row of `from`.
        const auto multiplied = [&](const MatrixTable& table, const Array& from, const Array& chosen, int of_row,
                                    const Array& to, const float* bias, bool keeps_leaves) {
            const Matrix& matrix = table.first().matrix();
            const int pairs = narrow(chosen.size());
            gpu::LinearShape shape = table.first().shape(pairs, to.floats());
            shape.chosen = {table.places(), chosen.integers(), first, table.count(), of_row};
            if (keeps_leaves) {
                shape.keeps_leaves = true;
                shape.num_leaves = of_sum.count;
                std::copy(leaves.begin(), leaves.end(), shape.leaf_ends);
            }
            const auto digits = matrix.in_blocks() ? std::optional(quantise(from, activations)) : std::nullopt;
            launch_layers(matrix, shape, from, digits, activations);
            if (bias) gpu::add_biases(device_, {shape.chosen, to.floats(), bias, pairs, narrow(matrix.rows)});
        };
        const Array gate = empty({ids.size(), inner}), up = empty({ids.size(), inner}), out = like(x);
        multiplied(gates, x, ids, per_row, gate, bias_of(0, inner), false);
        multiplied(ups, x, ids, per_row, up, bias_of(1, inner), false);
        const int count = narrow(gate.size());
        if (clamp)
            gpu::clamped_mul(device_, gate.floats(), up.floats(), clamp->first, clamp->second, count, gate.floats());
        else (by_gelu ? gpu::gelu_mul : gpu::silu_mul)(device_, gate.floats(), up.floats(), count, gate.floats(), {});
        const float* const bias = bias_of(2, width);
        const std::size_t rows = x.shape(0), of_row = ids.shape(1), of_pair = by_columns ? leaves.size() : 1;
        const std::size_t most = std::max<std::size_t>(1, most_floats / (of_row * of_pair * width));
        const Array given = empty({std::min(most, rows) * of_row, of_pair * width});
        for (std::size_t begin = 0; begin < rows; begin += most) {
            const std::size_t some = std::min(most, rows - begin), pairs = some * of_row, pair = begin * of_row;
            const Array chosen = ids.view(pair, {some, of_row});
            multiplied(downs, gate.view(pair * inner, {pairs, inner}), chosen, 1, given, by_columns ? nullptr : bias,
                       by_columns);
            gpu::sum_of_experts(device_, {{nullptr, chosen.integers(), first, gates.count(), per_row},
                                          narrow(some),
                                          narrow(width),
                                          given.floats(),
                                          weights.floats() + pair,
                                          by_columns ? bias : nullptr,
                                          of_sum,
                                          out.floats() + begin * width});
        }
        return out;
    }

    // The state [slots, taps - 1, channels] and slots as in gpu/shapes.h. weight: [channels, taps]
    Array causal_conv(const Array& x, const Array& weight, const std::optional<Array>& bias, const Array& state,
                      const Array& query_starts, const Array& reads, const Array& writes, bool silu) {
        require(x.ndim() == 2 && state.ndim() == 3 && state.shape(2) == x.shape(1), "x");
        const std::size_t taps = state.shape(1) + 1, seqs = reads.size();
        require(weight.size() == taps * x.shape(1) && (!bias || bias->size() == x.shape(1)), "weight");
        require(writes.size() == seqs && query_starts.size() == seqs + 1, "slots");
        Array out = like(x);
        gpu::causal_conv(device_, {x.floats(), weight.floats(), bias ? bias->floats() : nullptr, state.floats(),
                                   query_starts.integers(), reads.integers(), writes.integers(), narrow(x.shape(0)),
                                   narrow(seqs), narrow(taps), narrow(x.shape(1)), silu, out.floats()});
        return out;
    }
    Array decay(const Array& a, const Array& bias, const Array& rate, bool of_log) {
        require(bias.size() > 0 && rate.size() == bias.size() && a.size() % bias.size() == 0, "a");
        Array out = like(a);
        gpu::decay(device_, a.floats(), bias.floats(), rate.floats(), of_log, narrow(a.size() / bias.size()),
                   narrow(bias.size()), out.floats());
        return out;
    }
    // The state is [slots, heads, k_dim, v_dim]; value head h reads key head key_heads[h].
    Array delta_rule(const Array& q, const Array& k, const Array& v, const Array& decay, const Array& beta,
                     const Array& state, const Array& query_starts, const Array& reads, const Array& writes,
                     const Array& key_heads) {
        require(q.ndim() == 3 && q.shape() == k.shape() && v.ndim() == 3 && v.shape(0) == q.shape(0), "q");
        const std::size_t heads = v.shape(1), seqs = reads.size();
        require(state.ndim() == 4 && state.shape(1) == heads && state.shape(2) == q.shape(2) &&
                    state.shape(3) == v.shape(2),
                "state");
        require(key_heads.size() == heads && decay.size() == v.shape(0) * heads && beta.size() == decay.size(),
                "heads");
        require(writes.size() == seqs && query_starts.size() == seqs + 1, "slots");
        Array out = empty({v.shape(0), heads * v.shape(2)});
        gpu::delta_rule(
            device_, {q.floats(), k.floats(), v.floats(), decay.floats(), beta.floats(), state.floats(),
                      query_starts.integers(), reads.integers(), writes.integers(), key_heads.integers(), narrow(seqs),
                      narrow(q.shape(1)), narrow(heads), narrow(q.shape(2)), narrow(v.shape(2)), out.floats()});
        return out;
    }

    // `lost` [2] is filled with -1, and tells of a number that the cache cannot hold (gpu/cache.h, Store).
    void kv_write(const Array& k, const Array& v, const DeviceCache& cache, const Array& slots, const Array& lost) {
        const std::size_t count = slots.size() * cache.row();
        require(k.size() == count && v.size() == count && lost.size() == 2, "k");
        gpu::kv_write(device_, k.floats(), v.floats(), cache.view(), slots.integers(), narrow(slots.size()),
                      pairs_of(lost));
    }
    // q after RoPE; k after RoPE, and v, go to the cache alone.
    Array rope_kv_write(const Array& q, const Array& k, const Array& v, const Array& positions, const Array& cos,
                        const Array& sin, const DeviceCache& cache, const Array& slots, const Array& lost) {
        const std::size_t count = slots.size() * cache.row();
        require(k.size() == count && v.size() == count && lost.size() == 2, "k");
        require(k.ndim() == 3 && k.shape(2) == static_cast<std::size_t>(cache.head_dim), "k");
        Array out = like(q);
        gpu::rope_kv_write(device_, rope_shape(q, positions, cos, sin, &out),
                           rope_shape(k, positions, cos, sin, nullptr), v.floats(), cache.view(), slots.integers(),
                           narrow(slots.size()), pairs_of(lost));
        return out;
    }

    // [tokens, heads * head_dim]. `splits` of 256 keys hold the longest sequence. `scores`, if there are any, are
    // [heads, tokens of sequence score_seq, its context]: those of visible keys are written.
    WithDigits attention(const Array& q, const DeviceCache& cache, const Array& positions, const Array& query_starts,
                         const Array& block_tables, int splits, int block_size, int group_heads, int first_head,
                         float scale, float cap, const std::optional<Array>& sinks, int window,
                         std::optional<Out<float>> scores, int score_seq, int activations) {
        require(q.ndim() == 3 && q.shape(0) == positions.size(), "q");
        require(q.shape(2) == static_cast<std::size_t>(cache.head_dim), "head_dim");
        require(block_tables.ndim() == 2 && query_starts.size() == block_tables.shape(0) + 1, "block_tables");
        require(!scores || scores->ndim() == 3, "scores");
        WithDigits made = with_digits({q.shape(0), q.shape(1) * q.shape(2)}, q.shape(2), activations);
        const int tokens = narrow(positions.size());
        gpu::AttentionShape shape{};
        shape.cache = cache.view();
        shape.max_blocks = narrow(block_tables.shape(1));
        shape.block_size = block_size;
        shape.num_splits = splits;
        shape.positions = positions.integers();
        shape.query_starts = query_starts.integers();
        shape.block_tables = block_tables.integers();
        shape.q = q.floats();
        shape.out = made.first.floats();
        shape.num_heads = narrow(q.shape(1));
        shape.group_heads = group_heads;
        shape.first_head = first_head;
        shape.scale = scale;
        shape.cap = cap;
        require(!sinks || sinks->size() == q.shape(1), "sinks");
        shape.sinks = sinks ? sinks->floats() : nullptr;
        shape.window = window;
        const GilReleased released;
        std::optional<gpu::DeviceMemory> shown;
        if (scores) {
            shown.emplace(handle_, scores->size() * sizeof(float));
            gpu::upload(device_, {shown->as<void>(), scores->data(), shown->bytes()});
            shape.scores = shown->as<float>();
            shape.score_seq = score_seq;
            shape.score_context = narrow(scores->shape(2));
        }
        const std::size_t of_token = q.shape(1) * static_cast<std::size_t>(splits) * (q.shape(2) + 2) * 4;
        const int at_once = narrow(std::max<std::size_t>(1, kPartsBytes / std::max<std::size_t>(1, of_token)));
        const gpu::DeviceMemory parts(handle_, static_cast<std::size_t>(std::min(tokens, at_once)) * of_token);
        shape.parts = parts.as<float>();
        for (int token = 0; token < tokens; token += at_once) {
            shape.first_token = token;
            shape.num_tokens = std::min(tokens - token, at_once);
            gpu::attention(device_, shape, digits_too(made, activations));
        }
        if (scores) gpu::download(device_, {scores->data(), shown->as<void>(), shown->bytes()});
        return made;
    }

    // `tops` [rows, 2] is filled with -1. Each becomes 0, 0 where a logit is not finite, else its first number is the
    // first index of the largest logit.
    void finite_argmax(const Array& logits, const Array& tops) {
        require(logits.ndim() == 2 && tops.size() == 2 * logits.shape(0), "tops");
        gpu::finite_argmax(device_, logits.floats(), narrow(logits.shape(0)), narrow(logits.shape(1)), pairs_of(tops));
    }
    // [rows, kept, 2]: the largest logits of each row, which are finite, from the largest on; of equal ones the first
    // comes first. A pair is an index and the bits of its logit, or -1, -1 where a row has no more. `kept` is a power
    // of two.
    Array largest(const Array& logits, int kept) {
        require(logits.ndim() == 2 && kept > 0 && kept <= gpu::kMostLargest && (kept & (kept - 1)) == 0, "kept");
        const int rows = narrow(logits.shape(0)), columns = narrow(logits.shape(1));
        gpu::LargestShape shape{logits.floats(), rows, columns, nullptr, columns, kept, nullptr};
        std::optional<Array> ranks;
        while (true) {
            const int left = gpu::pieces(shape.count, gpu::kRankedAtOnce) * kept;
            Array made = empty({logits.shape(0), static_cast<std::size_t>(left), 2}, false);
            shape.out = pairs_of(made);
            gpu::largest(device_, shape);
            if (shape.count <= gpu::kRankedAtOnce) return made;
            ranks = made;
            shape.ranks = shape.out;
            shape.count = left;
        }
    }

private:
    static constexpr std::size_t kPartsBytes = std::size_t{64} << 20;  // of attention, at a time

    std::shared_ptr<gpu::Device> handle_;
    gpu::Device& device_;

    Array empty(Lengths shape, bool is_float = true) const { return Array::empty(handle_, std::move(shape), is_float); }
    Array like(const Array& x) const { return empty(x.shape()); }

    static Activations width_of(int activations) {
        require(activations >= 1 && activations <= 3, "activations");
        return static_cast<Activations>(activations);
    }
    static std::size_t digit_words(std::size_t columns, int activations) {  // of a row
        return columns / kDigitColumns * kDigitBlockBytes[static_cast<int>(width_of(activations))] / 4;
    }
    Array digits_of(std::size_t rows, std::size_t columns, int activations) const {
        return empty({rows, digit_words(columns, activations)}, false);
    }
    static std::uint64_t* pairs_of(const Array& array) { return reinterpret_cast<std::uint64_t*>(array.integers()); }
    static std::uint8_t* bytes_of(const Array& digits) { return reinterpret_cast<std::uint8_t*>(digits.integers()); }

    // A result of this shape, written in pieces of `piece` columns; with activations, digits of its rows, too.
    WithDigits with_digits(const Lengths& shape, std::size_t piece, int activations) const {
        WithDigits made{empty(shape), std::nullopt};
        if (activations == 0) return made;
        const std::size_t columns = shape.back();
        require(shape.size() == 2 && piece % kDigitColumns == 0 && columns % piece == 0, "digits of other rows");
        made.second = digits_of(shape[0], columns, activations);
        return made;
    }
    static gpu::DigitsToo digits_too(const WithDigits& made, int activations) {
        if (!made.second) return {};
        return {bytes_of(*made.second), width_of(activations), narrow(made.first.shape(0)),
                narrow(made.first.shape(1))};
    }

    void launch_layers(const Matrix& matrix, const gpu::LinearShape& shape, const Array& x,
                       const std::optional<Array>& digits, int activations) {
        const float* const from = x.floats();
        const int rows = narrow(x.shape(0));
        if (!matrix.in_blocks()) return gpu::float_linear(device_, matrix.format, shape, from);
        require(digits && digits->shape() == Lengths{x.shape(0), digit_words(x.shape(1), activations)}, "digits");
        gpu::integer_linear(device_, matrix.format, width_of(activations), shape, bytes_of(*digits), rows);
    }
    template <class Launch>
    WithDigits gated(const Launch& launch, const Array& gate, const Array& up, int activations) {
        require(gate.size() == up.size() && up.ndim() > 0, "gate");
        WithDigits made = with_digits(up.shape(), up.shape(up.ndim() - 1), activations);
        launch(device_, gate.floats(), up.floats(), narrow(up.size()), made.first.floats(),
               digits_too(made, activations));
        return made;
    }
    static gpu::RopeShape rope_shape(const Array& x, const Array& positions, const Array& cos, const Array& sin,
                                     const Array* out) {
        require(x.ndim() == 3 && x.shape(0) == positions.size(), "x");
        require(cos.ndim() == 2 && cos.size() == sin.size() && 2 * cos.shape(1) <= x.shape(2), "cos");
        return {x.floats(),
                positions.integers(),
                cos.floats(),
                sin.floats(),
                out ? out->floats() : nullptr,
                narrow(x.shape(0)),
                narrow(x.shape(1)),
                narrow(x.shape(2)),
                narrow(cos.shape(1))};
    }

    static void require_leaves(const std::vector<int>& leaves) {
        const std::size_t count = leaves.size();
        require(count >= 1 && count <= kMaxLeaves && (count & (count - 1)) == 0, "leaves");
        require(std::is_sorted(leaves.begin(), leaves.end()) && leaves[0] >= 0, "leaves");
    }
};

}  // namespace karat
