// Recording ops in which all ranks take part: rows of a vocabulary cut over ranks, sums over ranks, columns side by
// side.
#include <algorithm>

#include "plan/plan.h"
#include "plan/plan_ops.h"

namespace karat {
namespace {

constexpr std::uint32_t kMaxRows = 0x7fffffff;  // of a vocabulary: token ids are int32

}  // namespace

// Numbers a new collective, in which each rank puts rows of `width` into its slot.
std::uint32_t Plan::collective(const TransportRef& group, std::size_t width, Rows rows) {
    require(group && group->size > 1 && (group->size & (group->size - 1)) == 0 &&
                static_cast<std::size_t>(group->size) <= kMaxLeaves,
            "a group of 2, 4 or 8 ranks is needed");
    require(!group_ || group_->self == group->self, "two groups of ranks in one plan");
    group_ = group;
    std::size_t& widest = slot_widths_[static_cast<int>(rows)];
    widest = std::max(widest, width);
    return num_collectives_++;
}

Register Plan::embedding_over(TransportRef group, MatrixRef table, std::vector<std::uint32_t> ends) {
    const Register out = new_register(table->matrix.columns, Rows::tokens);
    const std::uint32_t number = collective(group, table->matrix.columns, Rows::tokens);
    const auto rank = static_cast<std::size_t>(group->rank);
    require(ends.size() == static_cast<std::size_t>(group->size) && std::is_sorted(ends.begin(), ends.end()) &&
                ends.back() <= kMaxRows && ends[rank] - (rank ? ends[rank - 1] : 0) == table->matrix.rows,
            "a table that is not this rank's part of the vocabulary");
    vocab_size_ = has_embedding_ ? std::min<std::size_t>(vocab_size_, ends.back()) : ends.back();
    has_embedding_ = true;
    auto op = std::make_unique<FetchRowsOp>();
    op->table = std::move(table);
    op->first = rank ? ends[rank - 1] : 0;
    op->collective = number;
    op->ends = std::move(ends);
    op->out = out;
    ops_.push_back(std::move(op));
    return out;
}

Register Plan::linear_over(TransportRef group, Register x, MatrixRef weight, VectorRef bias,
                           std::vector<std::uint32_t> leaf_ends) {
    require(weight != nullptr, "a layer without a matrix");
    const Rows rows = info_of(x).rows;
    const std::size_t width = weight->matrix.rows;
    auto op = linear_op(x, {std::move(weight)}, {std::move(bias)}, std::move(leaf_ends));
    op->collective = collective(group, width, rows);
    const Register out = op->out.front();
    ops_.push_back(std::move(op));
    return out;
}

Register Plan::gather(TransportRef group, Register x, std::size_t first, std::size_t width) {
    const Info info = info_of(x);
    require(first <= width && info.width <= width - first, "columns beyond the whole");
    require(whole_width_ == 0, "one result is gathered in a plan");
    auto op = std::make_unique<GatherOp>();
    op->x = x;
    op->first = first;
    op->collective = collective(group, 0, info.rows);
    const Register out = op->out = new_register(width, info.rows);
    whole_width_ = width;
    registers_[static_cast<std::size_t>(out)].outside = reinterpret_cast<float*>(group->whole(group->self));
    whole_rows_ = info.rows;
    ops_.push_back(std::move(op));
    return out;
}

}  // namespace karat
