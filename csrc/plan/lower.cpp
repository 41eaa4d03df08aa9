// The second pass over a recorded plan: an op that needs a barrier inside becomes one op for each side of it.
#include <utility>

#include "plan/plan.h"
#include "plan/plan_ops.h"

namespace karat {
namespace {

std::unique_ptr<Op> own_rows(FetchRowsOp& fetch) {
    auto own = std::make_unique<OwnRowsOp>();
    own->table = std::move(fetch.table);
    own->first = fetch.first;
    own->collective = fetch.collective;
    own->out = fetch.out;
    return own;
}

std::unique_ptr<Op> all_reduce(LinearOp& linear) {
    auto reduce = std::make_unique<AllReduceOp>();
    reduce->collective = static_cast<std::uint32_t>(linear.collective);
    reduce->bias = std::move(linear.biases.front());
    reduce->residual = std::exchange(linear.residual, -1);
    reduce->out = linear.out.front();
    return reduce;
}

std::unique_ptr<Op> arrive(const GatherOp& gather) {
    auto arrive = std::make_unique<ArriveOp>();
    arrive->collective = gather.collective;
    return arrive;
}

}  // namespace

// What writes the integers that a linear layer reads, before it; null if it reads none.
std::unique_ptr<Op> Plan::quantise(LinearOp& linear) {
    if (!linear.needs_digits()) return nullptr;
    const Info x = registers_[static_cast<std::size_t>(linear.x)];
    const std::size_t block = kDigitBlockBytes[static_cast<int>(linear.activations)];
    registers_.push_back({.width = x.width / kDigitColumns * block / sizeof(float), .rows = x.rows});  // in floats
    auto quantise = std::make_unique<QuantiseOp>();
    quantise->x = linear.x;
    quantise->activations = linear.activations;
    quantise->reader = &linear;
    linear.digits = quantise->out = static_cast<Register>(registers_.size() - 1);
    return quantise;
}

void Plan::lower() {
    std::vector<std::unique_ptr<Op>> recorded = std::exchange(ops_, {});
    for (auto& op : recorded) {
        std::unique_ptr<Op> before, after;
        if (auto* const fetch = dynamic_cast<FetchRowsOp*>(op.get())) {
            before = own_rows(*fetch);
        } else if (auto* const linear = dynamic_cast<LinearOp*>(op.get())) {
            before = quantise(*linear);
            if (linear->collective >= 0) after = all_reduce(*linear);
        } else if (const auto* const gather = dynamic_cast<GatherOp*>(op.get())) {
            after = arrive(*gather);
        } else if (const auto* const attend = dynamic_cast<AttendOp*>(op.get())) {
            after = std::make_unique<MergeOp>(*attend);
        }
        if (before) ops_.push_back(std::move(before));
        ops_.push_back(std::move(op));
        if (after) ops_.push_back(std::move(after));
    }
}

}  // namespace karat
