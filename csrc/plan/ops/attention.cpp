// Causal attention over a layer of a cache. Sequences with one token are computed in splits of their keys, which are
// merged after a barrier; of others some tokens are an item of work.
#include <algorithm>

#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct Item {
    std::uint32_t seq, kv_head, first, last;
    std::int32_t split;  // -1: tokens first … last - 1
    std::uint32_t part;  // where the split's partial results go
};

// The items of a step, the same for all ops with these numbers.
struct Items {
    std::size_t kv_heads, tile;            // tile: tokens of an item
    std::size_t group, num_slots, window;  // of the cache
    std::size_t max_context = 0;
    std::vector<Item> list = {};

    bool is_for(const Items& other) const {
        return kv_heads == other.kv_heads && tile == other.tile && group == other.group &&
               num_slots == other.num_slots && window == other.window;
    }
    void reserve(const StepLimits& limits);
    void check(const StepInput& input) const;
    void make(const BatchView& batch);
};

std::size_t splits_of(std::size_t context) { return (context + kSplitKeys - 1) / kSplitKeys; }

void Items::reserve(const StepLimits& limits) {
    max_context = limits.context;
    list.reserve(kv_heads * (limits.seqs * splits_of(limits.context) + limits.tokens));
}

void Items::check(const StepInput& input) const {
    require(group < input.groups.size(), "a step without the cache group");
    const BatchView b = input.batch(group);
    require(b.block_size > 0 && b.query_starts[0] == 0 &&
                static_cast<std::size_t>(b.query_starts[b.num_seqs]) == b.num_tokens,
            "query_starts do not fit");
    for (std::size_t seq = 0; seq < b.num_seqs; ++seq) {
        const std::int32_t first = b.query_starts[seq], last = b.query_starts[seq + 1];
        const std::size_t context = static_cast<std::size_t>(b.context_lens[seq]);
        require(b.block_size <= num_slots, "blocks larger than the cache");  // so no product below wraps
        require(first < last && static_cast<std::size_t>(last) <= b.num_tokens && b.context_lens[seq] > 0 &&
                    context <= max_context && (context + b.block_size - 1) / b.block_size <= b.max_blocks,
                "a sequence that does not fit the step");
        for (std::int32_t t = first; t < last; ++t)
            require(context - static_cast<std::size_t>(b.positions[t]) == static_cast<std::size_t>(last - t),
                    "positions that do not end with their sequence");
        const std::size_t first_end = static_cast<std::size_t>(b.positions[first]) + 1;  // of the keys it sees
        const std::size_t seen = window && window < first_end ? first_end - window : 0;  // no token sees those before
        for (std::size_t block = seen / b.block_size; block * b.block_size < context; ++block) {
            const std::int32_t id = b.block_tables[seq * b.max_blocks + block];
            require(id >= 0 && static_cast<std::size_t>(id) < num_slots / b.block_size, "a block outside the cache");
        }
    }
}

void Items::make(const BatchView& b) {
    list.clear();
    std::uint32_t part = 0;
    for (std::size_t seq = 0; seq < b.num_seqs; ++seq) {
        const std::size_t tokens = static_cast<std::size_t>(b.query_starts[seq + 1] - b.query_starts[seq]);
        const std::size_t splits = splits_of(static_cast<std::size_t>(b.context_lens[seq]));
        for (std::size_t head = 0; head < kv_heads; ++head) {
            const auto s = static_cast<std::uint32_t>(seq), h = static_cast<std::uint32_t>(head);
            if (tokens == 1)
                for (std::size_t split = 0; split < splits; ++split)
                    list.push_back({s, h, 0, 1, static_cast<std::int32_t>(split), part++});
            else  // the longest first: later tokens see more keys
                for (std::size_t last = tokens; last > 0; last -= std::min(last, tile))
                    list.push_back({s, h, static_cast<std::uint32_t>(last > tile ? last - tile : 0),
                                    static_cast<std::uint32_t>(last), -1, 0});
        }
    }
}

struct AttentionOp : Op {
    Register q, out;
    CacheRef cache;
    std::size_t window, num_heads, group_heads, first_head;
    float scale, cap;
    VectorRef sinks;  // or null
    std::shared_ptr<Items> items;

protected:
    AttentionArgs args(const StepContext& s) const {
        return {
            .cache = cache->view(),
            .batch = s.input.batch(cache->group),
            .q = s.data(q),
            .out = s.data(out),
            .num_heads = num_heads,
            .group_heads = group_heads,
            .first_head = first_head,
            .scale = scale,
            .window = window,
            .sinks = sinks ? sinks->values.data() : nullptr,
            .cap = cap,
            .scores = s.input.scores,
            .score_seq = s.input.score_seq,
        };
    }
    // Floats of a split's partial results, which lie in the workspace.
    std::size_t part_floats() const {
        return std::min(group_heads, num_heads) * ((cache->owner->head_dim + 15) / 16 * 16 + kPartStats);
    }
    float* part(const StepContext& s, const Item& item) const { return s.workspace() + item.part * part_floats(); }
};

// Merges the splits of sequences with one token.
struct MergeOp final : AttentionOp {
    explicit MergeOp(const AttentionOp& attention) : AttentionOp(attention) {}

    const char* name() const override { return "merge"; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const AttentionArgs a = args(s);
        const auto range = s.share(items->list.size(), thread);
        for (std::size_t i = range.first; i < range.last; ++i) {
            const Item& item = items->list[i];
            if (item.split != 0) continue;  // the first of a head stands for all
            const std::size_t splits = splits_of(static_cast<std::size_t>(a.batch.context_lens[item.seq]));
            s.kernels.attention_merge(a, item.seq, item.kv_head, splits, part(s, item), part_floats());
        }
    }
};

// Attention of tokens, and of splits of sequences with one token.
struct AttendOp final : AttentionOp {
    bool makes_items = false;  // for itself and later ops

    const char* name() const override { return "attend"; }
    Registers reads() const override { return {q}; }
    Registers writes() const override { return {out}; }
    void lower(Lowering& lowering) override { lowering.after.push_back(std::make_unique<MergeOp>(*this)); }
    void finish(Finishing& finishing) override {
        const StepLimits& limits = finishing.limits;
        finishing.ask_for_scratch(finishing.kernels.scratch_bytes(cache->owner->head_dim));
        finishing.ask_for_workspace(
            product({limits.seqs, items->kv_heads, splits_of(limits.context), part_floats(), sizeof(float)}));
        if (makes_items) items->reserve(limits);
    }
    void check(const StepInput& input) const override {
        require(!input.scores || input.score_heads == num_heads, "scores of another shape than the sequence's");
        if (makes_items) items->check(input);
    }
    void begin(const StepInput& input) override {
        if (makes_items) items->make(input.batch(items->group));
    }
    void run(StepContext& s, int thread) override {
        const AttentionArgs a = args(s);
        const auto& list = items->list;
        StepContext::Range range;
        while (s.take(*this, list.size(), thread, range))
            for (std::size_t i = range.first; i < range.last; ++i) {
                const Item& item = list[i];
                if (item.split < 0) {
                    s.kernels.attention(a, item.seq, item.kv_head, item.first, item.last, s.scratch(thread));
                    continue;
                }
                const std::size_t context = static_cast<std::size_t>(a.batch.context_lens[item.seq]);
                const std::size_t begin = window && window < context ? context - window : 0;
                if (static_cast<std::size_t>(item.split) >= begin / kSplitKeys)
                    s.kernels.attention_split(a, item.seq, item.kv_head, static_cast<std::size_t>(item.split),
                                              part(s, item), s.scratch(thread));
            }
    }
};

}  // namespace

Register record::attention(Plan& plan, Register q, CacheRef cache, float scale, std::size_t window,
                           std::size_t group_heads, std::size_t first_head, VectorRef sinks, float cap) {
    const RegisterInfo info = plan.info(q);
    const OwnedCache& held = *cache->owner;
    const std::size_t heads = info.width / held.head_dim;
    require(info.rows == Rows::tokens && heads > 0 && heads <= kMaxCount && info.width % held.head_dim == 0 &&
                first_head < group_heads && group_heads <= kMaxCount &&
                (first_head + heads - 1) / group_heads + 1 == held.num_kv_heads,
            "attention over a cache that does not fit");
    require(!sinks || sinks->values.size() == heads, "other sinks than one for each head");
    require(cap >= 0, "a cap below 0");
    auto op = std::make_unique<AttendOp>();
    const std::size_t tile = std::max<std::size_t>(1, plan.kernels().attention_rows / std::min(group_heads, heads));
    const Items wanted{.kv_heads = held.num_kv_heads,
                       .tile = tile,
                       .group = cache->group,
                       .num_slots = held.num_slots,
                       .window = window};
    for (const auto& other : plan.ops())  // asked for its type: only attention knows what attention can share
        if (const auto* same = dynamic_cast<const AttendOp*>(other.get()); same && same->items->is_for(wanted))
            op->items = same->items;
    op->makes_items = !op->items;
    if (op->makes_items) op->items = std::make_shared<Items>(wanted);
    op->q = q;
    op->out = plan.new_register({.width = info.width, .rows = Rows::tokens});
    op->cache = std::move(cache);
    op->scale = scale;
    op->sinks = std::move(sinks);
    op->cap = cap;
    op->window = window;
    op->num_heads = heads;
    op->group_heads = group_heads;
    op->first_head = first_head;
    return plan.append(std::move(op)).out;
}

}  // namespace karat
