// RMSNorm of rows that ranks share out: q and k whose heads are normalised together. Squares are added up first, along
// the tree of leaves, then each part is normalised by the whole sum.
#include <algorithm>

#include "plan/ops/all_reduce.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

constexpr std::size_t kParts = 2;  // q and k

// A row of a part: this rank's leaves of it. Numbers before `first` are another rank's.
struct Leaves {
    std::size_t first;
    std::vector<std::uint32_t> ends;
};

// The sum of squares over leaves leaf … leaf + count - 1 (a power of two), along the tree.
float tree_of_squares(const Kernels& kernels, const float* x, const Leaves& leaves, std::size_t leaf,
                      std::size_t count) {
    if (count == 1) {
        const std::size_t start = leaf ? leaves.ends[leaf - 1] : leaves.first;
        return kernels.square_sum(x + start, leaves.ends[leaf] - start);
    }
    const float left = tree_of_squares(kernels, x, leaves, leaf, count / 2);
    return left + tree_of_squares(kernels, x, leaves, leaf + count / 2, count / 2);
}

struct SquareSumsOp final : RowOp {
    Register x[kParts], out;
    Leaves leaves[kParts];
    Rows rows;
    std::optional<std::uint32_t> collective;  // the sums go into this rank's slot, and an AllReduceOp comes after it

    const char* name() const override { return "square_sums"; }
    Registers reads() const override { return {x[0], x[1]}; }
    Registers writes() const override { return collective ? Registers{} : Registers{out}; }
    void lower(Lowering& lowering) override {
        if (!collective) return;
        auto reduce = std::make_unique<AllReduceOp>();
        reduce->collective = *collective;
        reduce->out = out;
        reduce->rows = rows;
        reduce->width = kParts;
        lowering.after.push_back(std::move(reduce));
    }
    void run(StepContext& s, int thread) override {
        float* const to = collective ? s.own_slot(*collective) : s.data(out);
        const auto range = s.share(s.rows(x[0]), thread);
        for (std::size_t row = range.first; row < range.last; ++row)
            for (std::size_t part = 0; part < kParts; ++part)
                to[row * kParts + part] = tree_of_squares(s.kernels, s.data(x[part]) + row * s.width(x[part]),
                                                          leaves[part], 0, leaves[part].ends.size());
    }
};

struct PartNormOp final : RowOp {
    Register x, squares, out;
    VectorRef weight;
    double eps;
    std::size_t part, count;

    const char* name() const override { return "part_norm"; }
    Registers reads() const override { return {x, squares}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x);
        for (std::size_t row = range.first; row < range.last; ++row)
            s.kernels.part_norm(s.data(x) + row * width, weight->values.data(), s.data(squares)[row * kParts + part],
                                count, eps, s.data(out) + row * width, width);
    }
};

}  // namespace

Register record::square_sums(Plan& plan, Register q, Register k, std::vector<std::uint32_t> q_leaves,
                             std::vector<std::uint32_t> k_leaves, std::size_t k_first, TransportRef group) {
    auto op = std::make_unique<SquareSumsOp>();
    op->x[0] = q;
    op->x[1] = k;
    op->leaves[0] = {0, std::move(q_leaves)};
    op->leaves[1] = {k_first, std::move(k_leaves)};
    op->rows = plan.info(q).rows;
    require(plan.info(k).rows == op->rows, "q and k with other rows");
    for (std::size_t part = 0; part < kParts; ++part) {
        const auto& [first, ends] = op->leaves[part];
        const std::size_t width = plan.info(op->x[part]).width;
        require(!ends.empty() && ends.size() <= kMaxLeaves && (ends.size() & (ends.size() - 1)) == 0 &&
                    ends.back() == width && width <= kMaxColumns && std::is_sorted(ends.begin(), ends.end()) &&
                    first <= ends.front(),
                "leaves that do not cover the columns");
    }
    op->out = plan.new_register({.width = kParts, .rows = op->rows});
    if (group) op->collective = plan.new_collective(group);
    return plan.append(std::move(op)).out;
}

Register record::part_norm(Plan& plan, Register x, Register squares, VectorRef weight, double eps, std::size_t part,
                           std::size_t count) {
    const RegisterInfo info = plan.info(x), sums = plan.info(squares);
    require(info.width > 0 && weight->values.size() == info.width,
            "a norm weight of " + std::to_string(weight->values.size()) + " for rows of " + std::to_string(info.width));
    require(sums.width == kParts && sums.rows == info.rows && part < kParts, "sums that are not those of the rows");
    require(info.width <= count && count <= kMaxColumns, "a part of more numbers than the whole");
    auto op = std::make_unique<PartNormOp>();
    op->x = x;
    op->squares = squares;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->weight = std::move(weight);
    op->eps = eps;
    op->part = part;
    op->count = count;
    return plan.append(std::move(op)).out;
}

}  // namespace karat
