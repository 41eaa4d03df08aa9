// Rows cut into parts, each copied to a register of its own.
#include <cstring>

#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct SplitOp final : RowOp {
    Register x;
    Registers out;
    std::size_t groups;

    const char* name() const override { return "split"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return out; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const float* from = s.data(x) + range.first * s.width(x);
        for (std::size_t row = range.first; row < range.last; ++row)
            for (std::size_t group = 0; group < groups; ++group)
                for (const Register part : out) {
                    const std::size_t piece = s.width(part) / groups;
                    std::memcpy(s.data(part) + row * s.width(part) + group * piece, from, piece * sizeof(float));
                    from += piece;
                }
    }
};

}  // namespace

Registers record::split(Plan& plan, Register x, const std::vector<std::size_t>& widths, std::size_t groups) {
    const RegisterInfo info = plan.info(x);
    std::size_t total = 0;
    for (const std::size_t width : widths) {
        require(groups > 0 && width > 0 && width <= info.width && width % groups == 0,
                "a part that groups do not share");
        total += width;
    }
    require(total == info.width, "parts that are not the whole row");
    auto op = std::make_unique<SplitOp>();
    op->x = x;
    op->groups = groups;
    for (const std::size_t width : widths) op->out.push_back(plan.new_register({.width = width, .rows = info.rows}));
    return plan.append(std::move(op)).out;
}

}  // namespace karat
