// Recording a plan, and placing its registers.
#include "plan/plan.h"

#include <algorithm>
#include <new>

#include "plan/plan_ops.h"

namespace karat {
namespace {

constexpr std::size_t kStats = 16;                        // floats beside a split's part
constexpr std::size_t kAlign = 16;                        // floats
constexpr std::size_t kMaxCount = 0x7fffffff;             // of what a step counts in int32
constexpr std::size_t kMaxFloats = std::size_t{1} << 40;  // of a register: no memory has them, and no sum overflows

}  // namespace

OwnedCache::OwnedCache(CacheType type, std::size_t layers, std::size_t slots, std::size_t kv_heads,
                       std::size_t head_dim)
    : type(type), num_layers(layers), num_slots(slots), num_kv_heads(kv_heads), head_dim(head_dim) {
    const std::size_t item = type == CacheType::f32 ? 4 : 2, padded = (head_dim + 15) / 16 * 16;
    require(layers > 0 && slots > 0 && slots <= kMaxCount && kv_heads > 0 && head_dim > 0, "a cache without room");
    (void)product({kRegionSlots, kv_heads, 2, padded, item});  // K takes no more than V
    layer_bytes = kRegionSlots * kv_heads * (head_dim + padded) * item;
    memory = Memory(product({(slots + kRegionSlots - 1) / kRegionSlots, layers, layer_bytes}));
}

CacheView OwnedCache::layer(std::size_t index) const {
    return {type, num_kv_heads, head_dim, memory.bytes() + index * layer_bytes, num_layers * layer_bytes};
}

Plan::Plan(const Kernels& kernels, int num_threads) : kernels_(kernels), pool_(Pool::of(num_threads)) {}
Plan::~Plan() = default;

Plan::Register Plan::make(std::size_t width, Rows rows) {
    require(!finished_, "the plan is finished: nothing more can be recorded");
    registers_.push_back({width, rows, ops_.size(), ops_.size()});
    return static_cast<Register>(registers_.size() - 1);
}

const Plan::Info& Plan::use(Register reg) {
    require(!finished_, "the plan is finished: nothing more can be recorded");
    require(reg >= 0 && static_cast<std::size_t>(reg) < registers_.size(), "no such register");
    Info& info = registers_[static_cast<std::size_t>(reg)];
    info.last_used = ops_.size();
    return info;
}

Plan::Register Plan::input(std::size_t width, Rows rows) { return make(width, rows); }

Plan::Register Plan::embedding(MatrixRef table) {
    auto op = std::make_unique<EmbeddingOp>();
    op->out = make(table->matrix.columns, Rows::tokens);
    vocab_size_ = has_embedding_ ? std::min(vocab_size_, table->matrix.rows) : table->matrix.rows;
    has_embedding_ = true;
    op->table = std::move(table);
    const Register out = op->out;
    ops_.push_back(std::move(op));
    return out;
}

Plan::Register Plan::rms_norm(Register x, VectorRef weight, double eps) {
    const Info info = use(x);
    require(!weight->values.empty() && weight->values.size() <= kMaxColumns && info.width % weight->values.size() == 0,
            "a norm weight of " + std::to_string(weight->values.size()) + " for rows of " + std::to_string(info.width));
    auto op = std::make_unique<NormOp>();
    op->x = x;
    op->weight = std::move(weight);
    op->eps = eps;
    const Register out = op->out = make(info.width, info.rows);
    ops_.push_back(std::move(op));
    return out;
}

std::vector<Plan::Register> Plan::linear(Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                                         std::vector<std::uint32_t> leaf_ends) {
    const Info info = use(x);
    require(!weights.empty() && weights.size() == biases.size(), "one bias, or none, for each matrix");
    require(!leaf_ends.empty() && leaf_ends.size() <= kMaxLeaves && (leaf_ends.size() & (leaf_ends.size() - 1)) == 0 &&
                leaf_ends.back() == info.width && std::is_sorted(leaf_ends.begin(), leaf_ends.end()),
            "leaves that do not cover the columns");
    for (const MatrixRef& weight : weights) require(weight != nullptr, "a layer without a matrix");
    auto op = std::make_unique<LinearOp>();
    if (std::any_of(weights.begin(), weights.end(), [](const MatrixRef& w) { return w->matrix.info().has_minimum; })) {
        auto sums = std::make_unique<SumsOp>();
        sums->x = x;
        op->x_sums = sums->out = make(info.width / 16, info.rows);
        ops_.push_back(std::move(sums));
        use(x);
        use(op->x_sums);
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const Matrix& matrix = weights[i]->matrix;
        require(matrix.columns == info.width,
                "a matrix of " + std::to_string(matrix.columns) + " columns for rows of " + std::to_string(info.width));
        for (const std::uint32_t end : leaf_ends)
            require(end % matrix.info().block_columns == 0,
                    "a leaf that cuts a block of " + std::string(matrix.info().name));
        require(!biases[i] || biases[i]->values.size() == matrix.rows, "a bias that does not fit its matrix");
        op->out.push_back(make(matrix.rows, info.rows));
    }
    op->index = ops_.size();
    op->x = x;
    op->leaf_ends = std::move(leaf_ends);
    op->weights = std::move(weights);
    op->biases = std::move(biases);
    const std::vector<Register> out = op->out;
    ops_.push_back(std::move(op));
    return out;
}

Plan::Register Plan::silu_mul(Register gate, Register up) {
    const Info info = use(gate);
    require(use(up).width == info.width && use(up).rows == info.rows, "gate and up of different shapes");
    const Register out = make(info.width, info.rows);
    auto* last = ops_.empty() ? nullptr : dynamic_cast<LinearOp*>(ops_.back().get());
    if (last && last->out == std::vector<Register>{gate, up} && last->act < 0) {
        last->act = out;
        const std::size_t own = ops_.size() - 1;
        registers_[static_cast<std::size_t>(out)].born = own;
        for (const Register reg : {gate, up}) registers_[static_cast<std::size_t>(reg)].last_used = own;
        return out;
    }
    auto op = std::make_unique<SiluMulOp>();
    op->gate = gate;
    op->up = up;
    op->out = out;
    ops_.push_back(std::move(op));
    return out;
}

Plan::Register Plan::add(Register x, Register y) {
    const Info info = use(x);
    require(use(y).width == info.width && use(y).rows == info.rows, "a sum of different shapes");
    auto op = std::make_unique<AddOp>();
    op->x = x;
    op->y = y;
    const Register out = op->out = make(info.width, info.rows);
    ops_.push_back(std::move(op));
    return out;
}

Plan::Register Plan::rope(Register x, RopeRef table) {
    const Info info = use(x);
    require(info.rows == Rows::tokens && table->head_dim > 0 && info.width % table->head_dim == 0,
            "a rotary table that does not fit");
    auto op = std::make_unique<RopeOp>();
    op->x = x;
    num_positions_ = has_rope_ ? std::min(num_positions_, table->positions) : table->positions;
    has_rope_ = true;
    op->table = std::move(table);
    const Register out = op->out = make(info.width, info.rows);
    ops_.push_back(std::move(op));
    return out;
}

void Plan::kv_write(Register k, Register v, CacheRef cache, std::size_t layer) {
    const std::size_t width = cache->num_kv_heads * cache->head_dim;
    require(use(k).width == width && use(v).width == width && use(k).rows == Rows::tokens &&
                use(v).rows == Rows::tokens && layer < cache->num_layers,
            "a cache that does not fit");
    num_slots_ = has_cache_ ? std::min(num_slots_, cache->num_slots) : cache->num_slots;
    has_cache_ = true;
    auto op = std::make_unique<CacheWriteOp>();
    op->k = k;
    op->v = v;
    op->layer = layer;
    op->cache = std::move(cache);
    ops_.push_back(std::move(op));
}

Plan::Register Plan::attention(Register q, CacheRef cache, std::size_t layer, float scale, std::size_t window,
                               std::size_t group_heads, std::size_t first_head) {
    const Info info = use(q);
    const std::size_t heads = info.width / cache->head_dim;
    require(info.rows == Rows::tokens && layer < cache->num_layers && heads > 0 && heads <= kMaxCount &&
                info.width % cache->head_dim == 0 && first_head < group_heads && group_heads <= kMaxCount &&
                (first_head + heads - 1) / group_heads + 1 == cache->num_kv_heads,
            "attention over a cache that does not fit");
    require(
        num_heads_ == 0 || (num_heads_ == heads && num_kv_heads_ == cache->num_kv_heads &&
                            head_dim_ == cache->head_dim && group_heads_ == group_heads && first_head_ == first_head),
        "attention of different shapes in one plan");
    num_heads_ = heads;
    group_heads_ = group_heads;
    first_head_ = first_head;
    num_kv_heads_ = cache->num_kv_heads;
    head_dim_ = cache->head_dim;
    num_slots_ = has_cache_ ? std::min(num_slots_, cache->num_slots) : cache->num_slots;
    has_cache_ = true;
    const Register out = make(info.width, Rows::tokens);
    const auto fill = [&](AttentionOp& op) {
        op.index = ops_.size();
        op.q = q;
        op.out = out;
        op.cache = cache;
        op.layer = layer;
        op.scale = scale;
        op.window = window;
        op.group_heads = group_heads;
        op.first_head = first_head;
    };
    auto attend = std::make_unique<AttendOp>();
    fill(*attend);
    ops_.push_back(std::move(attend));
    use(q);
    auto merge = std::make_unique<MergeOp>();
    fill(*merge);
    ops_.push_back(std::move(merge));
    return out;
}

Plan::Register Plan::select(Register x) {
    const Info info = use(x);
    require(info.rows == Rows::tokens, "rows are selected once");
    auto op = std::make_unique<SelectOp>();
    op->x = x;
    const Register out = op->out = make(info.width, Rows::wanted);
    ops_.push_back(std::move(op));
    return out;
}

void Plan::finish(std::size_t max_tokens, std::size_t max_wanted, std::size_t max_seqs, std::size_t max_context,
                  const std::vector<Register>& kept) {
    require(!finished_ && barrier_before_.empty() && offsets_.empty(), "a plan is finished once");
    require(std::max({max_tokens, max_wanted, max_seqs, max_context}) <= kMaxCount, "a step of more than 2^31 tokens");
    for (const Register reg : kept) use(reg);
    max_tokens_ = max_tokens;
    max_wanted_ = max_wanted;
    max_seqs_ = max_seqs;
    max_context_ = max_context;
    // A sum whose second term is used nowhere else is taken into the layer that makes it.
    for (std::size_t i = 1; i < ops_.size(); ++i) {
        auto* sum = dynamic_cast<AddOp*>(ops_[i].get());
        auto* reduced = dynamic_cast<AllReduceOp*>(ops_[i - 1].get());
        if (sum && reduced && reduced->out == sum->y && sum->x != sum->y &&
            registers_[static_cast<std::size_t>(sum->y)].last_used == i) {
            reduced->residual = sum->x;
            reduced->out = sum->out;
            registers_[static_cast<std::size_t>(sum->out)].born = i - 1;
            ops_[i].reset();
            continue;
        }
        auto* layer = dynamic_cast<LinearOp*>(ops_[i - 1].get());
        if (!sum || !layer || layer->out != std::vector<Register>{sum->y} || layer->act >= 0 || sum->x == sum->y ||
            registers_[static_cast<std::size_t>(sum->y)].last_used != i)
            continue;
        layer->residual = sum->x;
        layer->out = {sum->out};
        registers_[static_cast<std::size_t>(sum->out)].born = i - 1;
        ops_[i].reset();
    }
    for (std::size_t i = 0; i < ops_.size(); ++i)
        if (auto* layer = dynamic_cast<LinearOp*>(ops_[i].get()); layer && layer->act >= 0)
            layer->passing = std::ranges::all_of(
                layer->out, [&](Register reg) { return registers_[static_cast<std::size_t>(reg)].last_used == i; });
    for (const Rows rows : {Rows::tokens, Rows::wanted}) {
        const std::size_t most = rows == Rows::tokens ? max_tokens : max_wanted;
        require(!group_ || product({most, slot_widths_[static_cast<int>(rows)], sizeof(float)}) <= group_->slot_bytes,
                "the slots of the group are too small for such a step");
    }
    require(whole_width_ == 0 || product({whole_rows_ == Rows::tokens ? max_tokens : max_wanted, whole_width_,
                                          sizeof(float)}) <= group_->whole_bytes,
            "the whole of the group is too small for such a step");
    const std::vector<std::size_t> phases = cut_into_phases();
    place_registers(phases);
    const std::size_t bytes = (kernels_.scratch_bytes(std::max<std::size_t>(head_dim_, 1)) + 4095) / 4096 * 4096;
    scratch_stride_ = bytes / sizeof(float);
    scratch_ = Memory(bytes * static_cast<std::size_t>(pool_->size()));
    if (num_heads_ > 0) {
        const std::size_t per_token = std::min(group_heads_, num_heads_), padded = (head_dim_ + 15) / 16 * 16;
        const std::size_t splits = (max_context + kSplitKeys - 1) / kSplitKeys;
        part_floats_ = per_token * (padded + kStats);
        parts_ = Memory(product({max_seqs, num_kv_heads_, splits, part_floats_, sizeof(float)}));
        items_.reserve(num_kv_heads_ * (max_seqs * splits + max_tokens));
    }
    finished_ = true;
    std::erase(ops_, nullptr);
    counters_ = std::make_unique<std::atomic<std::uint64_t>[]>(static_cast<std::size_t>(pool_->size()) * ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (auto* linear = dynamic_cast<LinearOp*>(ops_[i].get())) linear->index = i;
        if (auto* attention = dynamic_cast<AttentionOp*>(ops_[i].get())) attention->index = i;
    }
}

// Marks where barriers are needed. Returns the number of barriers before each op (fused ops included), and one past the
// last at the end.
std::vector<std::size_t> Plan::cut_into_phases() {
    std::vector<std::size_t> phases;
    std::size_t phase = 0;
    const Op* before = nullptr;
    for (const auto& op : ops_) {
        if (op) {
            const bool barrier = before && (op->joins() || !(op->by_rows() && before->by_rows()));
            barrier_before_.push_back(barrier);
            phase += barrier;
            before = op.get();
        }
        phases.push_back(phase);
    }
    phases.push_back(phase + 1);
    return phases;
}

// Places registers in one arena: each gets the lowest place that is free for its whole life. Between two barriers
// threads are at different ops, so a life is counted in whole phases.
void Plan::place_registers(const std::vector<std::size_t>& phases) {
    struct Placed { std::size_t first, last, born, last_used; };
    std::vector<Placed> placed;
    std::size_t total = 0;
    for (const Info& info : registers_) {
        const std::size_t rows = info.outside ? 0 : info.rows == Rows::tokens ? max_tokens_ : max_wanted_;
        const std::size_t floats = product({rows, info.width}), size = (floats + kAlign - 1) / kAlign * kAlign;
        if (floats > kMaxFloats) throw std::bad_alloc();
        const std::size_t born = phases[info.born], last_used = phases[info.last_used];
        std::vector<Placed> others;
        for (const Placed& other : placed)
            if (other.born <= last_used && born <= other.last_used) others.push_back(other);
        std::sort(others.begin(), others.end(), [](const Placed& a, const Placed& b) { return a.first < b.first; });
        std::size_t at = 0;
        for (const Placed& other : others)
            if (at + size > other.first) at = std::max(at, other.last);
        placed.push_back({at, at + size, born, last_used});
        offsets_.push_back(at);
        total = std::max(total, at + size);
    }
    arena_ = Memory((total + kAlign) * sizeof(float));
}

}  // namespace karat
