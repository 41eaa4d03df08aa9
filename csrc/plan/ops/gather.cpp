// The columns of all ranks side by side, in memory that the ranks share.
#include <cstring>

#include "plan/ops/collective.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

// Waits for the columns of the other ranks.
struct ArriveOp final : CollectiveOp {
    const char* name() const override { return "arrive"; }
    void run(StepContext& s, int thread) override { (void)s.exchange(collective, thread); }
};

// Writes this rank's columns into the whole result.
struct GatherColumnsOp final : RowOp {
    Register x, out;
    std::size_t first, width;  // of the whole
    std::uint32_t collective;  // of the ArriveOp after it
    Rows rows;

    const char* name() const override { return "gather"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void lower(Lowering& lowering) override {
        auto arrive = std::make_unique<ArriveOp>();
        arrive->collective = collective;
        lowering.after.push_back(std::move(arrive));
    }
    void finish(Finishing& finishing) override {
        require(product({finishing.limits.of(rows), width, sizeof(float)}) <= finishing.group->whole_bytes,
                "the whole of the group is too small for such a step");
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t from = s.width(x);
        for (std::size_t row = range.first; row < range.last; ++row)
            std::memcpy(s.data(out) + row * width + first, s.data(x) + row * from, from * sizeof(float));
    }
};

}  // namespace

Register record::gather(Plan& plan, TransportRef group, Register x, std::size_t first, std::size_t width) {
    const RegisterInfo info = plan.info(x);
    require(first <= width && info.width <= width - first, "columns beyond the whole");
    auto op = std::make_unique<GatherColumnsOp>();
    op->x = x;
    op->first = first;
    op->width = width;
    op->rows = info.rows;
    op->collective = plan.new_collective(group);
    op->out = plan.new_register({.width = width, .rows = info.rows, .outside = group->whole(group->self)});
    return plan.append(std::move(op)).out;
}

}  // namespace karat
