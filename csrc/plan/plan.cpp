// Recording a plan: each call is one op.
#include "plan/plan.h"

#include <algorithm>

#include "plan/plan_ops.h"

namespace karat {

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

Plan::Plan(const Kernels& kernels, const IntegerKernels& integers, int num_threads, Activations activations)
    : kernels_(kernels), integers_(integers), activations_(activations), pool_(Pool::of(num_threads)) {}
Plan::~Plan() = default;

Register Plan::new_register(std::size_t width, Rows rows) {
    require(recording_, "the plan is finished: nothing more can be recorded");
    registers_.push_back({.width = width, .rows = rows});
    return static_cast<Register>(registers_.size() - 1);
}

const Plan::Info& Plan::info_of(Register reg) const {
    require(recording_, "the plan is finished: nothing more can be recorded");
    require(reg >= 0 && static_cast<std::size_t>(reg) < registers_.size(), "no such register");
    return registers_[static_cast<std::size_t>(reg)];
}

template <class RecordedOp>
Register Plan::record(std::unique_ptr<RecordedOp> op) {
    const Register out = op->out;
    ops_.push_back(std::move(op));
    return out;
}

Register Plan::input(std::size_t width, Rows rows) {
    const Register reg = new_register(width, rows);
    registers_[static_cast<std::size_t>(reg)].is_input = true;
    return reg;
}

Register Plan::embedding(MatrixRef table) {
    auto op = std::make_unique<EmbeddingOp>();
    op->out = new_register(table->matrix.columns, Rows::tokens);
    vocab_size_ = has_embedding_ ? std::min(vocab_size_, table->matrix.rows) : table->matrix.rows;
    has_embedding_ = true;
    op->table = std::move(table);
    return record(std::move(op));
}

Register Plan::rms_norm(Register x, VectorRef weight, double eps) {
    const Info info = info_of(x);
    require(!weight->values.empty() && weight->values.size() <= kMaxColumns && info.width % weight->values.size() == 0,
            "a norm weight of " + std::to_string(weight->values.size()) + " for rows of " + std::to_string(info.width));
    auto op = std::make_unique<NormOp>();
    op->x = x;
    op->weight = std::move(weight);
    op->eps = eps;
    op->out = new_register(info.width, info.rows);
    return record(std::move(op));
}

std::unique_ptr<LinearOp> Plan::linear_op(Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                                          std::vector<std::uint32_t> leaf_ends) {
    const Info info = info_of(x);
    require(!weights.empty() && weights.size() == biases.size(), "one bias, or none, for each matrix");
    require(!leaf_ends.empty() && leaf_ends.size() <= kMaxLeaves && (leaf_ends.size() & (leaf_ends.size() - 1)) == 0 &&
                leaf_ends.back() == info.width && std::is_sorted(leaf_ends.begin(), leaf_ends.end()),
            "leaves that do not cover the columns");
    for (const MatrixRef& weight : weights) require(weight != nullptr, "a layer without a matrix");
    auto op = std::make_unique<LinearOp>();
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const Matrix& matrix = weights[i]->matrix;
        require(matrix.columns == info.width,
                "a matrix of " + std::to_string(matrix.columns) + " columns for rows of " + std::to_string(info.width));
        for (const std::uint32_t end : leaf_ends)
            require(end % matrix.info().block_columns == 0,
                    "a leaf that cuts a block of " + std::string(matrix.info().name));
        require(!biases[i] || biases[i]->values.size() == matrix.rows, "a bias that does not fit its matrix");
        op->out.push_back(new_register(matrix.rows, info.rows));
    }
    op->x = x;
    op->activations = activations_;
    op->leaf_ends = std::move(leaf_ends);
    op->weights = std::move(weights);
    op->biases = std::move(biases);
    return op;
}

Registers Plan::linear(Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                       std::vector<std::uint32_t> leaf_ends) {
    auto op = linear_op(x, std::move(weights), std::move(biases), std::move(leaf_ends));
    const Registers out = op->out;
    ops_.push_back(std::move(op));
    return out;
}

Register Plan::silu_mul(Register gate, Register up) {
    const Info info = info_of(gate);
    require(info_of(up).width == info.width && info_of(up).rows == info.rows, "gate and up of different shapes");
    auto op = std::make_unique<SiluMulOp>();
    op->gate = gate;
    op->up = up;
    op->out = new_register(info.width, info.rows);
    return record(std::move(op));
}

Register Plan::add(Register x, Register y) {
    const Info info = info_of(x);
    require(info_of(y).width == info.width && info_of(y).rows == info.rows, "a sum of different shapes");
    auto op = std::make_unique<AddOp>();
    op->x = x;
    op->y = y;
    op->out = new_register(info.width, info.rows);
    return record(std::move(op));
}

Register Plan::rope(Register x, RopeRef table) {
    const Info info = info_of(x);
    require(info.rows == Rows::tokens && table->head_dim > 0 && info.width % table->head_dim == 0,
            "a rotary table that does not fit");
    auto op = std::make_unique<RopeOp>();
    op->x = x;
    num_positions_ = has_rope_ ? std::min(num_positions_, table->positions) : table->positions;
    has_rope_ = true;
    op->table = std::move(table);
    op->out = new_register(info.width, info.rows);
    return record(std::move(op));
}

void Plan::kv_write(Register k, Register v, CacheRef cache, std::size_t layer) {
    const std::size_t width = cache->num_kv_heads * cache->head_dim;
    require(info_of(k).width == width && info_of(v).width == width && info_of(k).rows == Rows::tokens &&
                info_of(v).rows == Rows::tokens && layer < cache->num_layers,
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

Register Plan::attention(Register q, CacheRef cache, std::size_t layer, float scale, std::size_t window,
                         std::size_t group_heads, std::size_t first_head) {
    const Info info = info_of(q);
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
    auto op = std::make_unique<AttendOp>();
    op->q = q;
    op->out = new_register(info.width, Rows::tokens);
    op->cache = std::move(cache);
    op->layer = layer;
    op->scale = scale;
    op->window = window;
    op->group_heads = group_heads;
    op->first_head = first_head;
    return record(std::move(op));
}

Register Plan::select(Register x) {
    const Info info = info_of(x);
    require(info.rows == Rows::tokens, "rows are selected once");
    auto op = std::make_unique<SelectOp>();
    op->x = x;
    op->out = new_register(info.width, Rows::wanted);
    return record(std::move(op));
}

}  // namespace karat
