// Finishing a plan: the passes over its ops, where barriers are needed, and where registers lie.
#include <algorithm>
#include <new>
#include <string>

#include "plan/fuse.h"
#include "plan/plan.h"
#include "plan/plan_ops.h"

namespace karat {
namespace {

constexpr std::size_t kAlign = 16;                        // floats
constexpr std::size_t kMaxFloats = std::size_t{1} << 40;  // of a register: no memory has them, and no sum overflows

}  // namespace

void Plan::finish(std::size_t max_tokens, std::size_t max_wanted, std::size_t max_seqs, std::size_t max_context,
                  const Registers& kept, bool fusing) {
    require(recording_, "a plan is finished once");
    require(std::max({max_tokens, max_wanted, max_seqs, max_context}) <= kMaxCount, "a step of more than 2^31 tokens");
    for (const Register reg : kept) (void)info_of(reg);
    max_tokens_ = max_tokens;
    max_wanted_ = max_wanted;
    max_seqs_ = max_seqs;
    max_context_ = max_context;
    for (const Rows rows : {Rows::tokens, Rows::wanted}) {
        const std::size_t most = rows == Rows::tokens ? max_tokens : max_wanted;
        require(!group_ || product({most, slot_widths_[static_cast<int>(rows)], sizeof(float)}) <= group_->slot_bytes,
                "the slots of the group are too small for such a step");
    }
    require(whole_width_ == 0 || product({whole_rows_ == Rows::tokens ? max_tokens : max_wanted, whole_width_,
                                          sizeof(float)}) <= group_->whole_bytes,
            "the whole of the group is too small for such a step");
    recording_ = false;
    if (fusing) fused_ = fuse(ops_, kept);
    lower();
    place_registers(lives(kept), cut_into_phases());
    allocate();
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (auto* linear = dynamic_cast<LinearOp*>(ops_[i].get())) linear->index = i;
        if (auto* attention = dynamic_cast<AttentionOp*>(ops_[i].get())) attention->index = i;
    }
    finished_ = true;
}

std::vector<std::string> Plan::op_names() const {
    std::vector<std::string> names;
    for (const auto& op : ops_) names.emplace_back(op->name());
    return names;
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
    for (const Info& info : registers_) found.push_back({info.is_input ? 0 : ops_.size() + 1, 0});
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
//     byte 0                                                                          total * 4 bytes
//     phase 0   | x: rows * width * 4 bytes | norm of x             |                        |
//     phase 1   | x                         | q          | k        | v                      |
//     phase 2   | x                         | attention  | free                              |
//     phase 3   | x                         | gate                  | up                     |
//
// A row is a phase, a box a register: [rows, width] float32, its size rounded up to kAlign floats. Rows are the largest
// step's. `norm of x` ends with phase 0, so q takes its place.
void Plan::place_registers(const std::vector<Life>& lives, const std::vector<std::size_t>& phases) {
    struct Placed { std::size_t first, last, born, last_used; };
    std::vector<Placed> placed;
    std::size_t total = 0;
    for (std::size_t reg = 0; reg < registers_.size(); ++reg) {
        const Info& info = registers_[reg];
        const std::size_t rows = info.outside ? 0 : info.rows == Rows::tokens ? max_tokens_ : max_wanted_;
        const std::size_t floats = product({rows, info.width}), size = (floats + kAlign - 1) / kAlign * kAlign;
        if (floats > kMaxFloats) throw std::bad_alloc();
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
    arena_ = Memory((total + kAlign) * sizeof(float));
}

// Scratch memory for each thread, with room for the digits of one row behind it; parts of attention, counters of items.
void Plan::allocate() {
    const std::size_t most =
        std::max(kernels_.scratch_bytes(std::max<std::size_t>(head_dim_, 1)), integers_.scratch_bytes());
    own_digits_ = (most + 63) / 64 * 16;
    std::size_t digits = 0;
    for (const auto& op : ops_)
        if (const auto* const linear = dynamic_cast<const LinearOp*>(op.get()); linear && linear->digits >= 0)
            digits = std::max(digits, width(linear->digits));
    const std::size_t bytes = ((own_digits_ + digits) * sizeof(float) + 4095) / 4096 * 4096;
    scratch_stride_ = bytes / sizeof(float);
    scratch_ = Memory(bytes * static_cast<std::size_t>(pool_->size()));
    if (num_heads_ > 0) {
        const std::size_t per_token = std::min(group_heads_, num_heads_), padded = (head_dim_ + 15) / 16 * 16;
        const std::size_t splits = (max_context_ + kSplitKeys - 1) / kSplitKeys;
        part_floats_ = per_token * (padded + kPartStats);
        parts_ = Memory(product({max_seqs_, num_kv_heads_, splits, part_floats_, sizeof(float)}));
        items_.reserve(num_kv_heads_ * (max_seqs_ * splits + max_tokens_));
    }
    counters_ = std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(pool_->size()) * ops_.size());
}

}  // namespace karat
