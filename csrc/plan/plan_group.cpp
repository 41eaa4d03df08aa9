// Recording what ranks do together: rows of a shared vocabulary, sums over ranks, columns side by side.
#include <algorithm>

#include "plan/plan.h"
#include "plan/plan_ops.h"

namespace karat {
namespace {

constexpr std::uint32_t kMaxRows = 0x7fffffff;  // of a vocabulary: token ids are int32

}  // namespace

// One collective more, in which each rank puts rows of `width` into its slot.
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

Plan::Register Plan::embedding_over(TransportRef group, MatrixRef table, std::vector<std::uint32_t> ends) {
    const Register out = make(table->matrix.columns, Rows::tokens);
    const std::uint32_t number = collective(group, table->matrix.columns, Rows::tokens);
    const auto rank = static_cast<std::size_t>(group->rank);
    require(ends.size() == static_cast<std::size_t>(group->size) && std::is_sorted(ends.begin(), ends.end()) &&
                ends.back() <= kMaxRows && ends[rank] - (rank ? ends[rank - 1] : 0) == table->matrix.rows,
            "a table that is not this rank's part of the vocabulary");
    vocab_size_ = has_embedding_ ? std::min<std::size_t>(vocab_size_, ends.back()) : ends.back();
    has_embedding_ = true;
    auto own = std::make_unique<OwnRowsOp>();
    own->first = rank ? ends[rank - 1] : 0;
    own->collective = number;
    own->out = out;
    own->table = std::move(table);
    ops_.push_back(std::move(own));
    auto fetch = std::make_unique<FetchRowsOp>();
    fetch->collective = number;
    fetch->ends = std::move(ends);
    fetch->out = out;
    ops_.push_back(std::move(fetch));
    return out;
}

Plan::Register Plan::linear_over(TransportRef group, Register x, MatrixRef weight, VectorRef bias,
                                 std::vector<std::uint32_t> leaf_ends) {
    require(weight != nullptr, "a layer without a matrix");
    require(!bias || bias->values.size() == weight->matrix.rows, "a bias that does not fit its matrix");
    const Rows rows = use(x).rows;
    const std::size_t width = weight->matrix.rows;
    const Register out = linear(x, {std::move(weight)}, {nullptr}, std::move(leaf_ends)).front();
    const std::uint32_t number = collective(group, width, rows);
    dynamic_cast<LinearOp&>(*ops_.back()).collective = number;
    use(out);
    auto op = std::make_unique<AllReduceOp>();
    op->collective = number;
    op->bias = std::move(bias);
    op->out = out;
    ops_.push_back(std::move(op));
    return out;
}

Plan::Register Plan::gather(TransportRef group, Register x, std::size_t first, std::size_t width) {
    const Info info = use(x);
    require(first <= width && info.width <= width - first, "columns beyond the whole");
    auto op = std::make_unique<GatherOp>();
    op->x = x;
    op->first = first;
    const Register out = op->out = make(width, info.rows);
    ops_.push_back(std::move(op));
    auto arrive = std::make_unique<ArriveOp>();
    arrive->collective = collective(group, 0, info.rows);
    require(whole_width_ == 0, "one result is gathered in a plan");
    whole_width_ = width;
    registers_[static_cast<std::size_t>(out)].outside = reinterpret_cast<float*>(group->whole(group->self));
    whole_rows_ = info.rows;
    ops_.push_back(std::move(arrive));
    return out;
}

}  // namespace karat
