// Experts of a mixture. A pair is a row and one of the experts that it chose. Pairs are sorted by expert, so each
// expert reads its rows as one block; a row's result does not depend on the other rows.
//
//     sort      pairs by expert; of one expert in order of rows
//     gather    the rows of x by pair, or their digits: a row is rounded once, for all of its experts
//     gate, up  items are panels of one expert's matrices, for all of its pairs
//     quantise  digits of the pairs' inner rows
//     down      products, or by columns and of many rows sums of them, which wait in the workspace
//     biases    of down, where leaves are columns: of each row the weighted sum
//     experts   the sums over the pairs of a row, in order of id, and the tree
//
// Where leaves are columns, a pair has a product for each of them. Of a few rows these wait as others do. Of many rows
// they would take too much memory, so a thread adds up what it multiplies: its items are some leaves and panels, of one
// expert after the other, whose sums of all rows stay in its cache.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "plan/ops/all_reduce.h"
#include "plan/ops/expert_pairs.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

// What a row of an expert's matrix is multiplied with: rows of x, or their digits.
struct Factors {
    std::optional<Register> x, digits;  // for matrices of stored floats, in blocks
    Activations activations;

    Registers registers() const {
        Registers found;
        for (const auto& reg : {x, digits})
            if (reg) found.push_back(*reg);
        return found;
    }
    // Of `count` rows from row `first` on, which are a layer's of their own, to be multiplied with all of the matrix.
    LinearArgs of(const StepContext& s, const Matrix& matrix, std::size_t first, std::size_t count) const {
        const std::size_t columns = matrix.columns;
        LinearArgs args{};
        args.weight = &matrix;
        args.x = x ? s.data(*x) + first * columns : nullptr;
        args.x_stride = columns;
        args.tokens = count;
        args.activations = activations;
        args.digits = digits ? s.bytes(*digits) + first * s.integers.row_bytes(activations, columns) : nullptr;
        args.digits_rows = count;
        return args;
    }
};

void ask_for_products(Finishing& finishing) {
    finishing.ask_for_scratch(std::max(finishing.kernels.scratch_bytes(1), finishing.integers.scratch_bytes()));
}

void multiply(const StepContext& s, const LinearArgs& args, StepContext::Range panels, int thread) {
    (args.weight->in_blocks() ? s.integers.linear : s.kernels.linear)(args, panels.first, panels.last,
                                                                      s.scratch(thread));
}

// The gated unit of the products of each pair's row and two matrices of its expert, with their biases.
struct GatedOp final : Op {
    Factors factors;
    std::vector<MatrixRef> gates, ups;
    std::vector<VectorRef> gate_biases, up_biases;  // or none
    record::GatedUnit unit;
    Register gate, up, out;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_gated"; }
    Registers reads() const override { return factors.registers(); }
    Registers writes() const override { return {gate, up, out}; }
    void finish(Finishing& finishing) override { ask_for_products(finishing); }
    void run(StepContext& s, int thread) override {
        const std::size_t panels = gates.front()->matrix.num_panels();
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
        product(s, gates, gate_biases, gate, expert, panels, thread);
        product(s, ups, up_biases, up, expert, panels, thread);
        const Matrix& matrix = gates[expert]->matrix;
        const std::size_t begin = matrix.first_group(panels.first) * kGroupRows;
        const std::size_t end = std::min(matrix.first_group(panels.last) * kGroupRows, matrix.rows);
        for (std::size_t place = first; place < first + count; ++place) {
            const std::size_t at = place * matrix.rows + begin;
            const float *of_gate = s.data(gate) + at, *of_up = s.data(up) + at;
            float* const to = s.data(out) + at;
            if (const auto& clamp = unit.clamp)
                s.kernels.clamped_mul(of_gate, of_up, clamp->limit, clamp->alpha, to, end - begin);
            else (unit.by_gelu ? s.kernels.gelu_mul : s.kernels.silu_mul)(of_gate, of_up, to, end - begin);
        }
    }
    void product(const StepContext& s, const std::vector<MatrixRef>& weights, const std::vector<VectorRef>& biases,
                 Register to, std::size_t expert, StepContext::Range panels, int thread) const {
        const std::size_t first = sorted->starts[expert], count = sorted->starts[expert + 1] - first;
        const Matrix& matrix = weights[expert]->matrix;
        const std::uint32_t columns = static_cast<std::uint32_t>(matrix.columns);
        // Pairs of a step's only row all read the same.
        LinearArgs args = factors.of(s, matrix, s.rows(gate) == 1 ? 0 : first, count);
        args.out = s.data(to) + first * matrix.rows;
        args.out_stride = matrix.rows;
        args.bias = biases.empty() ? nullptr : biases[expert]->values.data();
        args.leaf_ends = &columns;
        args.num_leaves = 1;
        multiply(s, args, panels, thread);
    }
};

// The weighted sum of the biases of each row's experts, in order of id.
struct BiasesOp final : RowOp {
    std::vector<VectorRef> biases;
    Register out;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_biases"; }
    Registers writes() const override { return {out}; }
    void finish(Finishing& finishing) override {
        finishing.ask_for_scratch(sorted->chosen * (sizeof(const float*) + sizeof(float)));
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(out), thread);
        const std::size_t columns = s.width(out);
        const auto vectors = reinterpret_cast<const float**>(s.scratch(thread));
        const auto by = reinterpret_cast<float*>(vectors + sorted->chosen);
        for (std::size_t row = range.first; row < range.last; ++row) {
            for (std::size_t i = 0; i < sorted->counts[row]; ++i) {
                const std::size_t place = sorted->places[row * sorted->chosen + i];
                vectors[i] = biases[sorted->experts[place]]->values.data();
                by[i] = sorted->weights[place];
            }
            s.kernels.sum_of_experts(vectors, by, &sorted->counts[row], 1, columns, s.data(out) + row * columns);
        }
    }
};

// What waits in the workspace for the sum of a row, by how many rows there are and where leaves are.
enum class Waiting {
    products,  // of pairs: [pairs, width]
    by_leaf,   // the same of each leaf of columns: [leaves, pairs, width]
    sums,      // of a leaf of columns, over all experts: [leaves, blocks of panels, rows, rows of the block]
};

struct Given {
    std::vector<MatrixRef> downs;
    std::vector<VectorRef> biases;  // or none
    record::ExpertLeaves leaves;
    Factors inner;  // by pair
    Register rows_as;
    std::size_t width;
    std::shared_ptr<const Sorted> sorted;

    static constexpr std::size_t kFewRows = 16;
    static constexpr std::size_t kMostPanels = 4;           // of a block
    static constexpr std::size_t kNearFloats = 128 * 1024;  // of a block's sums: with more they leave the cache
    static constexpr std::size_t kItemsEach = 4;            // at least, of a thread

    Waiting waiting(const StepContext& s) const {
        if (!leaves.by_columns) return Waiting::products;
        return s.rows(rows_as) <= kFewRows ? Waiting::by_leaf : Waiting::sums;
    }
    std::size_t workspace_bytes(std::size_t most_rows) const {
        const std::size_t pairs = (leaves.by_columns ? std::min(most_rows, kFewRows) : most_rows) * sorted->chosen;
        const std::size_t rows = leaves.by_columns && most_rows > kFewRows ? most_rows : 0;
        const std::size_t each = leaves.by_columns ? leaves.ends.size() : 1;
        return std::max(pairs, rows) * each * width * sizeof(float);
    }
    const float* product(const StepContext& s, std::size_t leaf, std::size_t place) const {
        return s.workspace() + (leaf * sorted->num_pairs + place) * width;
    }
    const Matrix& shape() const { return downs.front()->matrix; }
    // How many leaves and panels a thread adds up at once.
    struct AtOnce { std::size_t leaves, panels; };
    AtOnce at_once(const StepContext& s) const {
        const std::size_t each = s.rows(rows_as) * kPanelGroups * kGroupRows, least = kItemsEach * s.num_threads;
        const std::size_t all = shape().num_panels() * leaves.ends.size();
        std::size_t count = leaves.ends.size();
        while (count > 1 && (count * each > kNearFloats || all / count < least)) count /= 2;
        const std::size_t panels = std::min({kMostPanels, kNearFloats / (count * each), all / count / least});
        return {count, std::max<std::size_t>(1, panels)};
    }
    // A block's sums of leaf 0; those of the next leaf come rows * width behind them.
    struct Block {
        StepContext::Range panels;
        std::size_t begin, columns;  // rows of the matrix
        float* sums;                 // [rows, columns]
    };
    std::size_t num_blocks(const StepContext& s) const {
        const std::size_t each = at_once(s).panels;
        return (shape().num_panels() + each - 1) / each;
    }
    Block block(const StepContext& s, std::size_t number) const {
        const std::size_t each = at_once(s).panels, first = number * each;
        const std::size_t last = std::min(first + each, shape().num_panels());
        const std::size_t begin = shape().first_group(first) * kGroupRows;
        const std::size_t end = std::min(shape().first_group(last) * kGroupRows, width);
        return {{first, last}, begin, end - begin, s.workspace() + s.rows(rows_as) * begin};
    }
    // Of an expert's pairs, to be multiplied; the leaves, and where results go, are to be said.
    LinearArgs args(const StepContext& s, std::size_t expert) const {
        const std::size_t first = sorted->starts[expert];
        return inner.of(s, downs[expert]->matrix, first, sorted->starts[expert + 1] - first);
    }
};

struct DownOp final : Op {
    std::shared_ptr<const Given> given;

    const char* name() const override { return "experts_down"; }
    Registers reads() const override { return given->inner.registers(); }
    void finish(Finishing& finishing) override { ask_for_products(finishing); }
    void run(StepContext& s, int thread) override {
        const Sorted& sorted = *given->sorted;
        const bool of_sums = given->waiting(s) == Waiting::sums;
        const std::size_t panels = given->shape().num_panels(), leaves = given->at_once(s).leaves;
        const std::size_t parts = given->leaves.ends.size() / leaves;
        const std::size_t all = of_sums ? given->num_blocks(s) * parts : sorted.num_groups * panels;
        StepContext::Range items;
        while (s.take(*this, all, thread, items)) {
            if (of_sums) {
                for (std::size_t item = items.first; item < items.last; ++item)
                    add_up(s, given->block(s, item / parts), item % parts * leaves, leaves, thread);
                continue;
            }
            for (std::size_t item = items.first, next; item < items.last; item = next) {
                const std::size_t group = item / panels, first = item % panels;
                next = std::min(items.last, (group + 1) * panels);
                compute(s, sorted.groups[group], {first, first + next - item}, thread);
            }
        }
    }

private:
    // Products of an expert's pairs.
    void compute(const StepContext& s, std::size_t expert, StepContext::Range panels, int thread) const {
        const Given& g = *given;
        const std::uint32_t all = static_cast<std::uint32_t>(g.shape().columns);
        LinearArgs args = g.args(s, expert);
        args.out = s.workspace() + g.sorted->starts[expert] * g.width;
        args.out_stride = g.width;
        args.bias = g.biases.empty() ? nullptr : g.biases[expert]->values.data();
        args.leaf_ends = g.leaves.by_columns ? g.leaves.ends.data() : &all;
        args.num_leaves = g.leaves.by_columns ? g.leaves.ends.size() : 1;
        args.leaf_stride = g.leaves.by_columns ? g.sorted->num_pairs * g.width : 0;
        multiply(s, args, panels, thread);
    }
    // Sums over all experts, of a block and `count` leaves.
    void add_up(const StepContext& s, const Given::Block& block, std::size_t leaf, std::size_t count,
                int thread) const {
        const Given& g = *given;
        const std::size_t rows = s.rows(g.rows_as), of_leaf = rows * g.width;
        float* const sums = block.sums + leaf * of_leaf;
        for (std::size_t i = 0; i < count; ++i)
            std::memset(sums + i * of_leaf, 0, rows * block.columns * sizeof(float));
        for (std::size_t group = 0; group < g.sorted->num_groups; ++group) {
            const std::size_t expert = g.sorted->groups[group], first = g.sorted->starts[expert];
            LinearArgs args = g.args(s, expert);
            args.out = sums - block.begin;  // within the workspace: rows * begin numbers lie before the block
            args.out_stride = block.columns;
            args.first_column = leaf > 0 ? g.leaves.ends[leaf - 1] : 0;
            args.leaf_ends = &g.leaves.ends[leaf];
            args.num_leaves = count;
            args.leaf_stride = of_leaf;
            args.sums_of = g.sorted->rows.data() + first;
            args.weights = g.sorted->weights.data() + first;
            multiply(s, args, block.panels, thread);
        }
    }
};

struct ExpertsOp final : Op {
    Register x, ids, weights, out;
    record::ExpertMatrices matrices;
    record::ExpertBiases biases;
    record::GatedUnit unit;
    record::ExpertLeaves leaves;
    Activations activations;
    std::optional<std::uint32_t> collective;
    std::shared_ptr<Sorted> sorted;

    const char* name() const override { return "experts"; }
    Registers reads() const override {
        if (!is_lowered_) return {x, ids, weights};
        Registers found = given_ ? given_->inner.registers() : Registers{};
        if (bias_sums_) found.push_back(*bias_sums_);
        return found;
    }
    Registers writes() const override { return collective ? Registers{} : Registers{out}; }

    void lower(Lowering& lowering) override {
        const std::size_t width = lowering.info(x).width;
        rows_ = lowering.info(x).rows;
        auto sort = std::make_unique<SortOp>();
        sort->ids = ids;
        sort->weights = weights;
        sort->rows = rows_;
        sort->sorted = sorted;
        for (const auto& all : {matrices.gates, matrices.ups, matrices.downs})
            if (!all.empty() && all.front()->file) sort->mapped.push_back(all);
        lowering.before.push_back(std::move(sort));
        if (!matrices.gates.empty()) lower_products(lowering);  // a rank may have no expert
        if (leaves.by_columns && !biases.downs.empty()) {
            auto sums = std::make_unique<BiasesOp>();
            sums->biases = std::exchange(biases.downs, {});
            sums->out = lowering.new_register({.width = width, .rows = rows_});
            sums->sorted = sorted;
            bias_sums_ = sums->out;
            lowering.before.push_back(std::move(sums));
        }
        if (collective) {
            auto reduce = std::make_unique<AllReduceOp>();
            reduce->collective = *collective;
            reduce->residual = std::exchange(bias_sums_, std::nullopt);
            reduce->out = out;
            reduce->rows = rows_;
            reduce->width = width;
            lowering.after.push_back(std::move(reduce));
        }
        width_ = width;
        is_lowered_ = true;
    }
    bool by_rows() const override { return !leaves.by_columns; }
    // Room for what waits, and for the terms of a row's sum.
    void finish(Finishing& finishing) override {
        if (given_) finishing.ask_for_workspace(given_->workspace_bytes(finishing.limits.of(rows_)));
        finishing.ask_for_scratch(most_terms() * (sizeof(const float*) + sizeof(float)));
    }
    void run(StepContext& s, int thread) override {
        if (given_ && given_->waiting(s) == Waiting::sums) add_leaves(s, thread);
        else add_pairs(s, thread);
    }

private:
    static constexpr std::size_t kPiece = 256;  // numbers of a row that a thread takes, where a row has many terms

    std::size_t most_terms() const { return sorted->chosen * (leaves.by_columns ? leaves.ends.size() : 1); }
    float* result(const StepContext& s, std::size_t row) const {
        return (collective ? s.own_slot(*collective) : s.data(out)) + row * width_;
    }
    // The biases come last, to n numbers of a row from `begin` on.
    void add_biases(const StepContext& s, std::size_t row, std::size_t begin, std::size_t n) const {
        float* const to = result(s, row) + begin;
        if (bias_sums_) s.kernels.add(to, s.data(*bias_sums_) + row * width_ + begin, to, n);
    }

    void add_pairs(const StepContext& s, int thread) const {
        const std::size_t piece = leaves.by_columns ? kPiece : width_, count = leaves.ends.size();
        const std::size_t pieces = (width_ + piece - 1) / piece;
        const auto vectors = reinterpret_cast<const float**>(s.scratch(thread));
        const auto by = reinterpret_cast<float*>(vectors + most_terms());
        std::uint32_t ends[kMaxLeaves];
        const auto range = s.share(s.rows(x) * pieces, thread);
        for (std::size_t item = range.first; item < range.last; ++item) {
            const std::size_t row = item / pieces, begin = item % pieces * piece;
            const std::size_t n = std::min(piece, width_ - begin);
            const std::uint32_t* const places = sorted->places.data() + row * sorted->chosen;
            std::uint32_t next = 0, terms = 0;
            for (std::size_t leaf = 0; leaf < count; ++leaf) {
                if (leaves.by_columns) next = 0;
                for (; next < sorted->counts[row]; ++next) {
                    const std::size_t place = places[next];
                    if (!leaves.by_columns && sorted->experts[place] >= leaves.ends[leaf]) break;
                    vectors[terms] = given_->product(s, leaves.by_columns ? leaf : 0, place) + begin;
                    by[terms++] = sorted->weights[place];
                }
                ends[leaf] = terms;
            }
            s.kernels.sum_of_experts(vectors, by, ends, count, n, result(s, row) + begin);
            add_biases(s, row, begin, n);
        }
    }

    void add_leaves(const StepContext& s, int thread) const {
        const std::size_t rows = s.rows(x), blocks = given_->num_blocks(s), count = leaves.ends.size();
        const auto range = s.share(blocks * rows, thread);
        for (std::size_t item = range.first; item < range.last; ++item) {
            const Given::Block block = given_->block(s, item / rows);
            const std::size_t row = item % rows, n = block.columns;
            const auto of_leaf = [&](std::size_t leaf) { return block.sums + leaf * rows * width_ + row * n; };
            float* const to = result(s, row) + block.begin;
            for (std::size_t step = 1; step < count; step *= 2)
                for (std::size_t left = 0; left < count; left += 2 * step)
                    s.kernels.add(of_leaf(left), of_leaf(left + step), 2 * step < count ? of_leaf(left) : to, n);
            if (count == 1) std::memcpy(to, of_leaf(0), n * sizeof(float));
            add_biases(s, row, block.begin, n);
        }
    }

    void lower_products(Lowering& lowering) {
        const std::size_t chosen = sorted->chosen, columns = lowering.info(x).width;
        const std::size_t inner = matrices.gates.front()->matrix.rows;
        const auto of_pairs = [&](std::size_t width) {
            return lowering.new_register({.width = chosen * width, .rows = rows_});
        };
        const auto digits_of = [&](std::size_t width) {
            const std::size_t bytes = chosen * lowering.integers.row_bytes(activations, width);
            return lowering.new_register({.width = bytes, .rows = rows_, .element = Element::u8});
        };
        auto gather = std::make_unique<GatherOp>();
        gather->x = x;
        gather->activations = activations;
        gather->sorted = sorted;
        if (any_of(true, matrices.gates) || any_of(true, matrices.ups)) gather->digits = digits_of(columns);
        if (any_of(false, matrices.gates) || any_of(false, matrices.ups)) gather->gathered = of_pairs(columns);
        auto both = std::make_unique<GatedOp>();
        both->factors = {gather->gathered, gather->digits, activations};
        both->gates = std::move(matrices.gates);
        both->ups = std::move(matrices.ups);
        both->gate_biases = std::move(biases.gates);
        both->up_biases = std::move(biases.ups);
        both->unit = unit;
        both->gate = of_pairs(inner);
        both->up = of_pairs(inner);
        both->out = of_pairs(inner);
        both->sorted = sorted;
        auto given = std::make_shared<Given>();
        given->inner = {both->out, std::nullopt, activations};
        lowering.before.push_back(std::move(gather));
        const Register both_out = both->out;
        lowering.before.push_back(std::move(both));
        if (any_of(true, matrices.downs)) {
            auto quantise = std::make_unique<QuantisePairsOp>();
            quantise->x = both_out;
            given->inner.digits = quantise->digits = digits_of(inner);
            quantise->columns = inner;
            quantise->activations = activations;
            quantise->sorted = sorted;
            lowering.before.push_back(std::move(quantise));
        }
        given->downs = std::move(matrices.downs);
        if (!leaves.by_columns) given->biases = std::move(biases.downs);
        given->leaves = leaves;
        given->rows_as = x;
        given->width = columns;
        given->sorted = sorted;
        given_ = given;
        auto down = std::make_unique<DownOp>();
        down->given = std::move(given);
        lowering.before.push_back(std::move(down));
    }
    static bool any_of(bool in_blocks, const std::vector<MatrixRef>& matrices) {
        return std::any_of(matrices.begin(), matrices.end(),
                           [&](const auto& each) { return each->matrix.in_blocks() == in_blocks; });
    }

    Rows rows_;
    std::shared_ptr<const Given> given_;  // null: a rank has no expert
    std::optional<Register> bias_sums_;   // what is added to the root
    std::size_t width_ = 0;
    bool is_lowered_ = false;
};

}  // namespace

Register record::experts(Plan& plan, TransportRef group, Register x, Register ids, Register weights,
                         ExpertMatrices matrices, ExpertBiases biases, GatedUnit unit, ExpertLeaves leaves,
                         std::size_t first) {
    const RegisterInfo info = plan.info(x), chosen = plan.info(ids, Element::i32);
    require(
        chosen.rows == info.rows && plan.info(weights).rows == info.rows && plan.info(weights).width == chosen.width,
        "experts and weights of other rows");
    const std::size_t count = matrices.gates.size();
    require(matrices.ups.size() == count && matrices.downs.size() == count, "an expert without a matrix");
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
    const std::vector<std::uint32_t>& ends = leaves.ends;
    require(!ends.empty() && ends.size() <= kMaxLeaves && (ends.size() & (ends.size() - 1)) == 0 &&
                ends.back() == (leaves.by_columns ? inner : count) && std::is_sorted(ends.begin(), ends.end()),
            "leaves that do not cover the experts");
    for (const MatrixRef& down : leaves.by_columns ? matrices.downs : std::vector<MatrixRef>{})
        for (const std::uint32_t end : ends)
            require(end % down->matrix.info().block_columns == 0,
                    "a leaf that cuts a block of " + std::string(down->matrix.info().name));
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
    op->leaves = std::move(leaves);
    op->activations = plan.activations();
    if (group) op->collective = plan.new_collective(group);
    op->sorted = std::make_shared<Sorted>(count, first, chosen.width);
    return plan.append(std::move(op)).out;
}

}  // namespace karat
