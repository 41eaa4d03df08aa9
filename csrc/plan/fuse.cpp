#include "plan/fuse.h"

#include <map>

#include "plan/ops/elementwise.h"
#include "plan/ops/linear.h"

namespace karat {
namespace {

// How many times each register is read: by ops, and after the run.
class Readers {
public:
    Readers(const Ops& ops, const Registers& kept) {
        for (const auto& op : ops)
            for (const Register reg : op->reads()) ++counts_[reg];
        for (const Register reg : kept) ++counts_[reg];
    }
    std::size_t of(Register reg) const {
        const auto found = counts_.find(reg);
        return found == counts_.end() ? 0 : found->second;
    }

private:
    std::map<Register, std::size_t> counts_;
};

// A rule joins an op and the one that follows it: it changes `first` to compute both, or returns false. It is about a
// pair of types, so it asks for the types: a virtual function would put a part of the rule into each of two ops.

// A gated unit of gate and up is computed a panel at a time, while both are in the second-level cache.
bool swiglu_into_gate_and_up(Op& first, const Op& second, const Readers& readers) {
    auto* const linear = dynamic_cast<LinearOp*>(&first);
    const auto* const swiglu = dynamic_cast<const GatedUnitOp*>(&second);
    if (!linear || !swiglu || linear->out != swiglu->reads()) return false;
    linear->act = swiglu->out;
    linear->act_kernel = swiglu->kernel;
    linear->only_for_act = readers.of(swiglu->x) == 1 && readers.of(swiglu->y) == 1;
    return true;
}

// A sum adds a residual to the only result of a layer, which nothing else reads: the layer adds it as it stores.
bool takes_residual(Op& first, const Op& second, const Readers& readers, bool over_ranks) {
    auto* const linear = dynamic_cast<LinearOp*>(&first);
    const auto* const sum = dynamic_cast<const AddOp*>(&second);
    if (!linear || !sum || linear->collective.has_value() != over_ranks || linear->out != Registers{sum->y} ||
        linear->residual || readers.of(sum->y) != 1)
        return false;
    linear->residual = sum->x;
    linear->out = {sum->out};
    return true;
}

bool residual_into_linear(Op& first, const Op& second, const Readers& readers) {
    return takes_residual(first, second, readers, false);
}

// The same where ranks' sums are added first: AllReduceOp adds the residual.
bool residual_into_all_reduce(Op& first, const Op& second, const Readers& readers) {
    return takes_residual(first, second, readers, true);
}

struct Rule {
    const char* name;
    bool (*join)(Op& first, const Op& second, const Readers& readers);
};
constexpr Rule kRules[] = {
    {"swiglu_into_gate_and_up", swiglu_into_gate_and_up},
    {"residual_into_linear", residual_into_linear},
    {"residual_into_all_reduce", residual_into_all_reduce},
};

}  // namespace

std::vector<std::string> fuse(Ops& ops, const Registers& kept) {
    const Readers readers(ops, kept);
    std::vector<std::string> applied;
    Ops joined;
    bool may_join = false;  // an op is joined with one other at most
    for (auto& op : ops) {
        const Rule* found = nullptr;
        for (const Rule& rule : kRules)
            if (!found && may_join && rule.join(*joined.back(), *op, readers)) found = &rule;
        if (found) applied.emplace_back(found->name);
        else joined.push_back(std::move(op));
        may_join = !found;
    }
    ops = std::move(joined);
    return applied;
}

}  // namespace karat
