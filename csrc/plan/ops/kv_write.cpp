// K and V of each token, written to its slot of a layer's cache.
#include "plan/ops/check.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct CacheWriteOp final : RowOp {
    Register k, v;
    CacheRef cache;

    const char* name() const override { return "kv_write"; }
    Registers reads() const override { return {k, v}; }
    void check(const StepInput& input) const override {
        require(cache->group < input.groups.size(), "a step without the cache group");
        const std::int32_t* const slots = input.groups[cache->group].slots;
        require_below(slots, input.num_tokens, cache->owner->num_slots, "a slot outside the cache");
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(k), thread);
        const std::size_t width = s.width(k), first = range.first * width;
        const std::ptrdiff_t lost = s.kernels.kv_write(s.data(k) + first, s.data(v) + first, cache->view(),
                                                       s.input.groups[cache->group].slots + range.first, range.size());
        if (lost < 0 || s.overflow_taken.test_and_set()) return;
        std::size_t at = static_cast<std::size_t>(lost);
        const std::size_t count = range.size() * width;
        const bool is_value = at >= count;
        at -= is_value ? count : 0;
        s.overflow = {true,
                      cache->layer,
                      is_value,
                      range.first + at / width,
                      at % width / cache->owner->head_dim,
                      s.data(is_value ? v : k)[first + at]};
    }
};

}  // namespace

void record::kv_write(Plan& plan, Register k, Register v, CacheRef cache) {
    const std::size_t width = cache->owner->num_kv_heads * cache->owner->head_dim;
    require(plan.info(k).width == width && plan.info(v).width == width && plan.info(k).rows == Rows::tokens &&
                plan.info(v).rows == Rows::tokens,
            "a cache that does not fit");
    auto op = std::make_unique<CacheWriteOp>();
    op->k = k;
    op->v = v;
    op->cache = std::move(cache);
    plan.append(std::move(op));
}

}  // namespace karat
