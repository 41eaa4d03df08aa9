// Norms of rows, or of each head of a row: RMSNorm and that of Euclid.
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct NormOp final : RowOp {
    Register x, out;
    VectorRef weight;
    double eps;

    const char* name() const override { return "rms_norm"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), n = weight->values.size();  // several norms a row: one for each head
        s.kernels.rms_norm(s.data(x) + range.first * width, weight->values.data(), eps,
                           s.data(out) + range.first * width, range.size() * (width / n), n);
    }
};

struct L2NormOp final : RowOp {
    Register x, out;
    std::size_t size;
    double eps;
    float factor;

    const char* name() const override { return "l2_norm"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), first = range.first * width;
        s.kernels.l2_norm(s.data(x) + first, eps, factor, s.data(out) + first, range.size() * (width / size), size);
    }
};

// 1 + weight, rounded once.
VectorRef one_more(const Plan& plan, const Vector& weight) {
    const std::vector<float> ones(weight.values.size(), 1.0f);
    Vector sums{std::vector<float>(ones.size())};
    plan.kernels().add(ones.data(), weight.values.data(), sums.values.data(), ones.size());
    return std::make_shared<const Vector>(std::move(sums));
}

}  // namespace

Register record::l2_norm(Plan& plan, Register x, std::size_t size, double eps, double factor) {
    const RegisterInfo info = plan.info(x);
    require(size > 0 && size <= kMaxColumns && info.width % size == 0,
            "norms of " + std::to_string(size) + " for rows of " + std::to_string(info.width));
    auto op = std::make_unique<L2NormOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->size = size;
    op->eps = eps;
    op->factor = static_cast<float>(factor);
    return plan.append(std::move(op)).out;
}

Register record::rms_norm(Plan& plan, Register x, VectorRef weight, double eps, bool plus_one) {
    const RegisterInfo info = plan.info(x);
    require(!weight->values.empty() && weight->values.size() <= kMaxColumns && info.width % weight->values.size() == 0,
            "a norm weight of " + std::to_string(weight->values.size()) + " for rows of " + std::to_string(info.width));
    auto op = std::make_unique<NormOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->weight = plus_one ? one_more(plan, *weight) : std::move(weight);
    op->eps = eps;
    return plan.append(std::move(op)).out;
}

}  // namespace karat
