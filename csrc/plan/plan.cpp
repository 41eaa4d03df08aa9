// Recording: what every op's recording needs.
#include "plan/plan.h"

namespace karat {

Plan::Plan(const Kernels& kernels, const IntegerKernels& integers, int num_threads, Activations activations)
    : kernels_(kernels), integers_(integers), activations_(activations), crew_(num_threads) {}
Plan::~Plan() = default;

Register Plan::new_register(const RegisterInfo& info) {
    require(recording_, "the plan is finished: nothing more can be recorded");
    for (const RegisterInfo& other : registers_)
        require(!info.outside || other.outside != info.outside, "two results in one place outside of the plan");
    registers_.push_back(info);
    return static_cast<Register>(registers_.size() - 1);
}

const RegisterInfo& Plan::recorded_info(Register reg) const {
    require(recording_, "the plan is finished: nothing more can be recorded");
    require(reg >= 0 && static_cast<std::size_t>(reg) < registers_.size(), "no such register");
    return registers_[static_cast<std::size_t>(reg)];
}

const RegisterInfo& Plan::info(Register reg, Element element) const {
    const RegisterInfo& found = recorded_info(reg);
    require(found.element == element, "a register of other elements");
    return found;
}

Register Plan::input(std::size_t width, Rows rows, Element element) {
    return new_register({.width = width, .rows = rows, .element = element, .is_input = true});
}

std::uint32_t Plan::new_collective(const TransportRef& group) {
    require(group && group->size > 1 && (group->size & (group->size - 1)) == 0 &&
                static_cast<std::size_t>(group->size) <= kMaxLeaves,
            "a group of 2, 4 or 8 ranks is needed");
    require(!group_ || group_->self == group->self, "two groups of ranks in one plan");
    group_ = group;
    return num_collectives_++;
}

std::vector<std::string> Plan::op_names() const {
    std::vector<std::string> names;
    for (const auto& op : ops_) names.emplace_back(op->name());
    return names;
}

}  // namespace karat
