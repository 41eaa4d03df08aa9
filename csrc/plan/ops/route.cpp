// Which experts of a mixture each row goes to.
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct RouteOp final : RowOp {
    Register logits, ids, weights;
    Routing how;
    VectorRef bias, scales;  // or null

    const char* name() const override { return "route"; }
    Registers reads() const override { return {logits}; }
    Registers writes() const override { return {ids, weights}; }
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(3 * num_experts * sizeof(float)); }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(logits), thread);
        s.kernels.route(s.data(logits) + range.first * num_experts, range.size(), num_experts, how,
                        s.ids(ids) + range.first * how.chosen, s.data(weights) + range.first * how.chosen,
                        s.scratch(thread));
    }

    std::size_t num_experts;
};

}  // namespace

std::pair<Register, Register> record::route(Plan& plan, Register logits, std::size_t chosen, bool by_sigmoid,
                                            bool renormalised, std::size_t groups, std::size_t chosen_groups,
                                            double outside, double plus, double least, double scale, VectorRef bias,
                                            VectorRef scales) {
    const RegisterInfo info = plan.info(logits);
    require(groups > 0 && info.width % groups == 0, "groups of experts of different sizes");
    require(chosen_groups > 0 && chosen_groups <= groups, "more groups chosen than there are, or none");
    require(chosen > 0 && chosen <= info.width / groups * chosen_groups, "more experts chosen than there are, or none");
    for (const VectorRef& each : {bias, scales})
        require(!each || each->values.size() == info.width, "another number of values than of experts");
    auto op = std::make_unique<RouteOp>();
    op->logits = logits;
    op->num_experts = info.width;
    op->how = {
        .chosen = chosen,
        .by_sigmoid = by_sigmoid,
        .renormalised = renormalised,
        .groups = groups,
        .chosen_groups = chosen_groups,
        .outside = static_cast<float>(outside),
        .plus = static_cast<float>(plus),
        .least = static_cast<float>(least),
        .scale = static_cast<float>(scale),
        .bias = bias ? bias->values.data() : nullptr,
        .scales = scales ? scales->values.data() : nullptr,
    };
    op->bias = std::move(bias);
    op->scales = std::move(scales);
    op->ids = plan.new_register({.width = chosen, .rows = info.rows, .element = Element::i32});
    op->weights = plan.new_register({.width = chosen, .rows = info.rows});
    const RouteOp& recorded = plan.append(std::move(op));
    return {recorded.ids, recorded.weights};
}

}  // namespace karat
