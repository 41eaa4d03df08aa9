// Finishing a plan: the passes over its ops, where barriers are needed, and where registers lie.
#include <algorithm>
#include <new>

#include "plan/fuse.h"
#include "plan/plan.h"

namespace karat {
namespace {

constexpr std::size_t kAlign = 64;                       // bytes
constexpr std::size_t kMaxBytes = std::size_t{1} << 42;  // of a register: no memory has them, and no sum overflows

}  // namespace

void Plan::finish(const StepLimits& limits, const Registers& kept, bool fusing) {
    require(recording_, "a plan is finished once");
    require(std::max({limits.tokens, limits.wanted, limits.seqs, limits.context}) <= kMaxCount,
            "a step of more than 2^31 tokens");
    for (const Register reg : kept) require(recorded_info(reg).element != Element::u8, "a register of other elements");
    limits_ = limits;
    recording_ = false;
    if (fusing) fused_ = fuse(ops_, kept);
    lower();
    place_registers(lives(kept), cut_into_phases());
    finish_ops();
    counters_ = std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(crew_.size()) * ops_.size());
    finished_ = true;
}

void Plan::lower() {
    Ops recorded = std::exchange(ops_, {});
    for (auto& op : recorded) {
        Lowering lowering{registers_, integers_, {}, {}};
        op->lower(lowering);
        for (auto& before : lowering.before) ops_.push_back(std::move(before));
        ops_.push_back(std::move(op));
        for (auto& after : lowering.after) ops_.push_back(std::move(after));
    }
}

// Numbers the ops, and allocates what they ask for.
void Plan::finish_ops() {
    Finishing asked{limits_, kernels_, integers_, group_.get()};
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        ops_[i]->index = i;
        ops_[i]->finish(asked);
    }
    const std::size_t bytes = (asked.scratch_bytes + 4095) / 4096 * 4096;
    scratch_stride_ = bytes / sizeof(float);
    scratch_ = Memory(product({bytes, static_cast<std::size_t>(crew_.size())}));
    workspace_ = Memory(asked.workspace_bytes);
}

// Marks where barriers are needed. Returns the number of barriers before each op, and one past the last at the end.
std::vector<std::size_t> Plan::cut_into_phases() {
    std::vector<std::size_t> phases;
    std::size_t phase = 0;
    const Op* before = nullptr;
    for (const auto& op : ops_) {
        const bool barrier = before && (op->needs_barrier_before() || !(op->by_rows() && before->by_rows()));
        barrier_before_.push_back(barrier);
        phase += barrier;
        before = op.get();
        phases.push_back(phase);
    }
    phases.push_back(phase + 1);
    return phases;
}

// From the first op that writes a register to the last that touches it. An input is written before the first op; a
// register in `kept` is read after the last. A register that no op touches has no life: first > last.
std::vector<Plan::Life> Plan::lives(const Registers& kept) const {
    std::vector<Life> found;
    for (const RegisterInfo& info : registers_) found.push_back({info.is_input ? 0 : ops_.size() + 1, 0});
    const auto touch = [&](Register reg, std::size_t op) {
        Life& life = found[static_cast<std::size_t>(reg)];
        life = {std::min(life.first, op), std::max(life.last, op)};
    };
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        for (const Register reg : ops_[i]->reads()) touch(reg, i);
        for (const Register reg : ops_[i]->writes()) touch(reg, i);
    }
    for (const Register reg : kept) touch(reg, ops_.size());
    return found;
}

// Places registers in one arena: each gets the lowest place that is free for its whole life. Between two barriers
// threads are at different ops, so a life is counted in whole phases. A register without a life shares the beginning.
//
//     byte 0                                                                          total
//     phase 0   | x: rows * width * 4 bytes | norm of x             |                        |
//     phase 1   | x                         | q          | k        | v                      |
//     phase 2   | x                         | attention  | free                              |
//     phase 3   | x                         | gate                  | up                     |
//
// A row is a phase, a box a register: its size is rounded up to kAlign bytes. Rows are the largest step's. `norm of x`
// ends with phase 0, so q takes its place. Behind the last box is what kernels may read past digits.
void Plan::place_registers(const std::vector<Life>& lives, const std::vector<std::size_t>& phases) {
    struct Placed { std::size_t first, last, born, last_used; };
    std::vector<Placed> placed;
    std::size_t total = 0;
    for (std::size_t reg = 0; reg < registers_.size(); ++reg) {
        const RegisterInfo& info = registers_[reg];
        const std::size_t rows = info.outside ? 0 : limits_.of(info.rows);
        const std::size_t bytes = product({rows, info.row_bytes()}), size = (bytes + kAlign - 1) / kAlign * kAlign;
        if (bytes > kMaxBytes) throw std::bad_alloc();
        std::size_t at = 0;
        if (lives[reg].first <= lives[reg].last) {
            const std::size_t born = phases[lives[reg].first], last_used = phases[lives[reg].last];
            std::vector<Placed> others;
            for (const Placed& other : placed)
                if (other.born <= last_used && born <= other.last_used) others.push_back(other);
            std::sort(others.begin(), others.end(), [](const Placed& a, const Placed& b) { return a.first < b.first; });
            for (const Placed& other : others)
                if (at + size > other.first) at = std::max(at, other.last);
            placed.push_back({at, at + size, born, last_used});
        }
        offsets_.push_back(at);
        total = std::max(total, at + size);
    }
    arena_ = Memory(total + kDigitSlack);
}

}  // namespace karat
