// Experts of a mixture. A pair is a row and one of the experts that it chose. Pairs are sorted by expert, so each
// expert reads its rows as one block; a row's result does not depend on the other rows.
//
//     sort      pairs by expert; of one expert in order of rows
//     gather    the rows of x by pair, or their digits: a row is rounded once, for all of its experts
//     gate, up  items are panels of one expert's matrices, for all of its pairs
//     quantise  digits of the pairs' inner rows
//     down      items as before
//     experts   the sum over the pairs of a row, in order of id
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "plan/ops/all_reduce.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

// What a step's rows chose, for all threads. Memory is there for the largest step.
struct Sorted {
    const std::size_t num_experts, first, chosen;  // held: ids from `first` on

    std::vector<std::uint32_t> starts;   // [experts + 1]: where each expert's pairs begin
    std::vector<std::uint32_t> groups;   // the experts that have pairs, in order
    std::vector<std::uint32_t> pairs;    // by place: row * chosen + number of the choice
    std::vector<std::uint32_t> experts;  // by place: whose it is
    std::vector<std::uint32_t> places;   // [rows, chosen]: where the row's pairs are, in order of id
    std::vector<std::uint32_t> counts;   // [rows]: how many these are
    std::size_t num_groups = 0, num_pairs = 0;

    Sorted(std::size_t num_experts, std::size_t first, std::size_t chosen)
        : num_experts(num_experts), first(first), chosen(chosen) {}
    void reserve(std::size_t rows) {
        starts.resize(num_experts + 1);
        groups.resize(num_experts);
        pairs.resize(rows * chosen);
        experts.resize(rows * chosen);
        places.resize(rows * chosen);
        counts.resize(rows);
    }
    void sort(const std::int32_t* ids, std::size_t rows) {
        const auto held = [&](std::size_t pair) { return static_cast<std::size_t>(ids[pair]) - first; };
        std::fill(starts.begin(), starts.end(), 0);
        std::fill(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rows), 0);
        for (std::size_t pair = 0; pair < rows * chosen; ++pair)
            if (const std::size_t expert = held(pair); expert < num_experts) ++starts[expert + 1];
        num_groups = 0;
        for (std::size_t expert = 0; expert < num_experts; ++expert) {
            if (starts[expert + 1] > 0) groups[num_groups++] = static_cast<std::uint32_t>(expert);
            starts[expert + 1] += starts[expert];
        }
        num_pairs = starts[num_experts];
        for (std::size_t pair = 0; pair < rows * chosen; ++pair)  // each start moves to the end of its expert
            if (const std::size_t expert = held(pair); expert < num_experts) {
                experts[starts[expert]] = static_cast<std::uint32_t>(expert);
                pairs[starts[expert]++] = static_cast<std::uint32_t>(pair);
            }
        for (std::size_t expert = num_experts; expert > 0; --expert) starts[expert] = starts[expert - 1];
        starts[0] = 0;
        for (std::size_t place = 0; place < num_pairs; ++place) {
            const std::size_t row = pairs[place] / chosen;
            places[row * chosen + counts[row]++] = static_cast<std::uint32_t>(place);
        }
    }
};

struct SortOp final : Op {
    Register ids;
    std::shared_ptr<Sorted> sorted;
    std::vector<std::vector<MatrixRef>> mapped;  // matrices of each expert, if they lie in a file

    const char* name() const override { return "experts_sort"; }
    Registers reads() const override { return {ids}; }
    void finish(Finishing& finishing) override { sorted->reserve(finishing.limits.of(rows)); }
    void run(StepContext& s, int thread) override {
        if (thread != 0) return;
        sorted->sort(s.ids(ids), s.rows(ids));
        for (std::size_t group = 0; group < sorted->num_groups; ++group)
            for (const auto& matrices : mapped) {
                const Matrix& matrix = matrices[sorted->groups[group]]->matrix;
                read_ahead(matrix.data, matrix.packed_bytes());
            }
    }

    Rows rows;
};

// Digits of an expert's pairs lie as those of a layer with as many rows, so that an expert with one pair is multiplied
// like a layer of one token.
struct GatherOp final : Op {
    Register x;
    std::optional<Register> gathered, digits;  // for matrices of stored floats, in blocks
    Activations activations;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_gather"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override {
        Registers found;
        for (const auto& reg : {gathered, digits})
            if (reg) found.push_back(*reg);
        return found;
    }
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(sorted->chosen * sizeof(DigitsPlace)); }
    void run(StepContext& s, int thread) override {
        const std::size_t columns = s.width(x), chosen = sorted->chosen;
        if (s.rows(x) == 1) {  // all experts read the same
            if (thread != 0) return;
            if (gathered) std::memcpy(s.data(*gathered), s.data(x), columns * sizeof(float));
            if (digits) s.integers.quantise(activations, s.data(x), 1, columns, 0, 1, s.bytes(*digits));
            return;
        }
        const std::size_t row_bytes = s.integers.row_bytes(activations, columns);
        const auto to = reinterpret_cast<DigitsPlace*>(s.scratch(thread));
        const auto range = s.share(s.rows(x), thread);
        for (std::size_t row = range.first; row < range.last; ++row) {
            const float* const from = s.data(x) + row * columns;
            const std::size_t count = sorted->counts[row];
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t place = sorted->places[row * chosen + i], expert = sorted->experts[place];
                const std::size_t begin = sorted->starts[expert], end = sorted->starts[expert + 1];
                if (gathered) std::memcpy(s.data(*gathered) + place * columns, from, columns * sizeof(float));
                if (digits) to[i] = {s.bytes(*digits) + begin * row_bytes, end - begin, place - begin};
            }
            if (digits && count > 0) s.integers.quantise_row(activations, from, columns, to, count);
        }
    }
};

struct QuantisePairsOp final : Op {
    Register x, digits;
    std::size_t columns;
    Activations activations;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_quantise"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {digits}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(sorted->num_pairs, thread);
        for (std::size_t group = 0; group < sorted->num_groups; ++group) {
            const std::size_t expert = sorted->groups[group];
            const std::size_t begin = sorted->starts[expert], end = sorted->starts[expert + 1];
            const std::size_t first = std::max(begin, range.first), last = std::min(end, range.last);
            if (first < last)
                s.integers.quantise(activations, s.data(x) + begin * columns, end - begin, columns, first - begin,
                                    last - begin, s.bytes(digits) + begin * s.integers.row_bytes(activations, columns));
        }
    }
};

// A product of each pair's row and a matrix of its expert, with its bias; with two matrices, the gated unit of both
// products.
struct ProductsOp final : Op {
    std::optional<Register> x, digits;         // for matrices of stored floats, in blocks
    std::vector<MatrixRef> weights, ups;       // ups: of a gated unit, or none
    std::vector<VectorRef> biases, up_biases;  // or none
    record::GatedUnit unit;                    // of the gated unit
    Registers out;                             // of weights; then of ups, and of the gated unit
    bool of_gathered;                          // whether a step's only row is all pairs'
    Activations activations;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_products"; }
    Registers reads() const override {
        Registers found;
        for (const auto& reg : {x, digits})
            if (reg) found.push_back(*reg);
        return found;
    }
    Registers writes() const override { return out; }
    void finish(Finishing& finishing) override {
        finishing.ask_for_scratch(std::max(finishing.kernels.scratch_bytes(1), finishing.integers.scratch_bytes()));
    }
    void run(StepContext& s, int thread) override {
        const std::size_t panels = weights.front()->matrix.num_panels();
        StepContext::Range items;
        while (s.take(*this, sorted->num_groups * panels, thread, items))
            for (std::size_t item = items.first, next; item < items.last; item = next) {
                const std::size_t group = item / panels, first = item % panels;
                next = std::min(items.last, (group + 1) * panels);
                compute(s, sorted->groups[group], {first, first + next - item}, thread);
            }
    }

private:
    void compute(const StepContext& s, std::size_t expert, StepContext::Range panels, int thread) const {
        const std::size_t first = sorted->starts[expert], count = sorted->starts[expert + 1] - first;
        const auto bias_of = [&](const std::vector<VectorRef>& all) {
            return all.empty() ? nullptr : all[expert]->values.data();
        };
        product(s, weights[expert]->matrix, bias_of(biases), out[0], first, count, panels, thread);
        if (ups.empty()) return;
        product(s, ups[expert]->matrix, bias_of(up_biases), out[1], first, count, panels, thread);
        const Matrix& matrix = weights[expert]->matrix;
        const std::size_t begin = matrix.first_group(panels.first) * kGroupRows;
        const std::size_t end = std::min(matrix.first_group(panels.last) * kGroupRows, matrix.rows);
        for (std::size_t place = first; place < first + count; ++place) {
            const std::size_t at = place * matrix.rows + begin;
            const float *gate = s.data(out[0]) + at, *up = s.data(out[1]) + at;
            float* const to = s.data(out[2]) + at;
            if (const auto& clamp = unit.clamp)
                s.kernels.clamped_mul(gate, up, clamp->limit, clamp->alpha, to, end - begin);
            else (unit.by_gelu ? s.kernels.gelu_mul : s.kernels.silu_mul)(gate, up, to, end - begin);
        }
    }
    void product(const StepContext& s, const Matrix& matrix, const float* bias, Register to, std::size_t first,
                 std::size_t count, StepContext::Range panels, int thread) const {
        const std::uint32_t columns = static_cast<std::uint32_t>(matrix.columns);
        const std::size_t from = of_gathered && s.rows(out[0]) == 1 ? 0 : first;
        const LinearArgs args{
            .weight = &matrix,
            .x = x ? s.data(*x) + from * matrix.columns : nullptr,
            .x_stride = matrix.columns,
            .tokens = count,
            .out = s.data(to) + first * matrix.rows,
            .out_stride = matrix.rows,
            .bias = bias,
            .residual = nullptr,
            .leaf_ends = &columns,
            .num_leaves = 1,
            .activations = activations,
            .digits = digits ? s.bytes(*digits) + from * s.integers.row_bytes(activations, matrix.columns) : nullptr,
            .digits_rows = count,
            .first_row = 0,
        };
        (matrix.in_blocks() ? s.integers.linear : s.kernels.linear)(args, panels.first, panels.last, s.scratch(thread));
    }
};

struct ExpertsOp final : RowOp {
    Register x, ids, weights, out;
    record::ExpertMatrices matrices;
    record::ExpertBiases biases;
    record::GatedUnit unit;
    std::vector<std::uint32_t> leaf_ends;
    Activations activations;
    std::optional<std::uint32_t> collective;
    std::shared_ptr<Sorted> sorted;

    const char* name() const override { return "experts"; }
    Registers reads() const override { return given_ ? Registers{weights, *given_} : Registers{x, ids, weights}; }
    Registers writes() const override { return collective ? Registers{} : Registers{out}; }

    void lower(Lowering& lowering) override {
        const Rows rows = lowering.info(x).rows;
        auto sort = std::make_unique<SortOp>();
        sort->ids = ids;
        sort->rows = rows;
        sort->sorted = sorted;
        for (const auto& all : {matrices.gates, matrices.ups, matrices.downs})
            if (!all.empty() && all.front()->file) sort->mapped.push_back(all);
        lowering.before.push_back(std::move(sort));
        if (!matrices.gates.empty()) lower_products(lowering);  // a rank may have no expert
        if (collective) {
            auto reduce = std::make_unique<AllReduceOp>();
            reduce->collective = *collective;
            reduce->out = out;
            reduce->rows = rows;
            reduce->width = lowering.info(x).width;
            lowering.after.push_back(std::move(reduce));
        }
    }
    // Room for the rows and weights of the pairs of one row.
    void finish(Finishing& finishing) override {
        finishing.ask_for_scratch(sorted->chosen * (sizeof(const float*) + sizeof(float)));
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(weights), thread);
        const std::size_t chosen = sorted->chosen, columns = s.width(out);
        const auto rows = reinterpret_cast<const float**>(s.scratch(thread));
        const auto by = reinterpret_cast<float*>(rows + chosen);
        std::uint32_t ends[kMaxLeaves];
        for (std::size_t row = range.first; row < range.last; ++row) {
            const std::uint32_t* const places = sorted->places.data() + row * chosen;
            std::size_t leaf = 0;
            for (std::uint32_t i = 0; i < sorted->counts[row]; ++i) {
                const std::uint32_t place = places[i];
                while (place >= sorted->starts[leaf_ends[leaf]]) ends[leaf++] = i;
                rows[i] = s.data(*given_) + place * columns;
                by[i] = s.data(weights)[sorted->pairs[place]];
            }
            while (leaf < leaf_ends.size()) ends[leaf++] = sorted->counts[row];
            float* const to = (collective ? s.own_slot(*collective) : s.data(out)) + row * columns;
            s.kernels.sum_of_experts(rows, by, ends, leaf_ends.size(), columns, to);
        }
    }

private:
    void lower_products(Lowering& lowering) {
        const Rows rows = lowering.info(x).rows;
        const std::size_t chosen = sorted->chosen, columns = lowering.info(x).width;
        const std::size_t inner = matrices.gates.front()->matrix.rows;
        const auto of_pairs = [&](std::size_t width) {
            return lowering.new_register({.width = chosen * width, .rows = rows});
        };
        const auto digits_of = [&](std::size_t width) {
            const std::size_t bytes = chosen * lowering.integers.row_bytes(activations, width);
            return lowering.new_register({.width = bytes, .rows = rows, .element = Element::u8});
        };
        auto gather = std::make_unique<GatherOp>();
        gather->x = x;
        gather->activations = activations;
        gather->sorted = sorted;
        if (any_of(true, matrices.gates) || any_of(true, matrices.ups)) gather->digits = digits_of(columns);
        if (any_of(false, matrices.gates) || any_of(false, matrices.ups)) gather->gathered = of_pairs(columns);
        auto both = std::make_unique<ProductsOp>();
        both->x = gather->gathered;
        both->digits = gather->digits;
        both->of_gathered = true;
        both->out = {of_pairs(inner), of_pairs(inner), of_pairs(inner)};
        both->activations = activations;
        both->sorted = sorted;
        auto down = std::make_unique<ProductsOp>();
        down->x = both->out[2];
        down->of_gathered = false;
        down->out = {of_pairs(columns)};
        down->activations = activations;
        down->sorted = sorted;
        std::unique_ptr<QuantisePairsOp> quantise;
        if (any_of(true, matrices.downs)) {
            quantise = std::make_unique<QuantisePairsOp>();
            quantise->x = both->out[2];
            quantise->digits = digits_of(inner);
            quantise->columns = inner;
            quantise->activations = activations;
            quantise->sorted = sorted;
            down->digits = quantise->digits;
        }
        given_ = down->out.front();
        both->weights = std::move(matrices.gates);
        both->ups = std::move(matrices.ups);
        both->biases = std::move(biases.gates);
        both->up_biases = std::move(biases.ups);
        both->unit = unit;
        down->weights = std::move(matrices.downs);
        down->biases = std::move(biases.downs);
        lowering.before.push_back(std::move(gather));
        lowering.before.push_back(std::move(both));
        if (quantise) lowering.before.push_back(std::move(quantise));
        lowering.before.push_back(std::move(down));
    }
    static bool any_of(bool in_blocks, const std::vector<MatrixRef>& matrices) {
        return std::any_of(matrices.begin(), matrices.end(),
                           [&](const auto& each) { return each->matrix.in_blocks() == in_blocks; });
    }

    std::optional<Register> given_;  // by pair: what its expert gives
};

}  // namespace

Register record::experts(Plan& plan, TransportRef group, Register x, Register ids, Register weights,
                         ExpertMatrices matrices, ExpertBiases biases, GatedUnit unit,
                         std::vector<std::uint32_t> leaf_ends, std::size_t first) {
    const RegisterInfo info = plan.info(x), chosen = plan.info(ids, Element::i32);
    require(
        chosen.rows == info.rows && plan.info(weights).rows == info.rows && plan.info(weights).width == chosen.width,
        "experts and weights of other rows");
    const std::size_t count = matrices.gates.size();
    require(matrices.ups.size() == count && matrices.downs.size() == count, "an expert without a matrix");
    require(!leaf_ends.empty() && leaf_ends.size() <= kMaxLeaves && (leaf_ends.size() & (leaf_ends.size() - 1)) == 0 &&
                leaf_ends.back() == count && std::is_sorted(leaf_ends.begin(), leaf_ends.end()),
            "leaves that do not cover the experts");
    const auto fits = [](const std::vector<MatrixRef>& all, std::size_t rows, std::size_t columns) {
        return std::all_of(all.begin(), all.end(), [&](const MatrixRef& each) {
            return each && each->matrix.rows == rows && each->matrix.columns == columns;
        });
    };
    require(count == 0 || matrices.gates.front() != nullptr, "an expert without a matrix");
    const std::size_t inner = count > 0 ? matrices.gates.front()->matrix.rows : 0;
    require(fits(matrices.gates, inner, info.width) && fits(matrices.ups, inner, info.width) &&
                fits(matrices.downs, info.width, inner),
            "experts' matrices that do not fit each other");
    const auto all_fit = [&](const std::vector<VectorRef>& all, std::size_t size) {
        return (all.empty() || all.size() == count) &&
               std::all_of(all.begin(), all.end(), [&](const VectorRef& each) { return each->values.size() == size; });
    };
    require(all_fit(biases.gates, inner) && all_fit(biases.ups, inner) && all_fit(biases.downs, info.width),
            "experts' biases that do not fit their matrices");
    auto op = std::make_unique<ExpertsOp>();
    op->x = x;
    op->ids = ids;
    op->weights = weights;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->matrices = std::move(matrices);
    op->biases = std::move(biases);
    op->unit = unit;
    op->leaf_ends = std::move(leaf_ends);
    op->activations = plan.activations();
    if (group) op->collective = plan.new_collective(group);
    op->sorted = std::make_shared<Sorted>(count, first, chosen.width);
    return plan.append(std::move(op)).out;
}

}  // namespace karat
