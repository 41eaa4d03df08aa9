// Rows of a table by token id: of a whole table, or of one whose rows are cut over ranks. Of a table that lies in a
// mapped file, the rows of up to 16 tokens are packed for the kernel as they are needed.
#include <algorithm>
#include <cstring>

#include "plan/ops/check.h"
#include "plan/ops/collective.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

constexpr std::uint32_t kMaxRows = 0x7fffffff;  // of a vocabulary: token ids are int32
constexpr const char* kOutside = "a token id outside the vocabulary";

const Matrix& shape_of(const TableRef& table) {
    if (const auto* const packed = std::get_if<MatrixRef>(&table)) return (*packed)->matrix;
    return std::get<1>(table)->shape;
}

// Scratch of a thread that gathers rows.
std::size_t scratch_bytes(const TableRef& table) {
    return std::holds_alternative<MatrixRef>(table) ? 0 : shape_of(table).group_bytes() + kPackedSlack;
}

void gather(const StepContext& s, const TableRef& table, const std::int32_t* ids, std::size_t count, float* out,
            int thread) {
    if (const auto* const packed = std::get_if<MatrixRef>(&table))
        return s.kernels.embedding((*packed)->matrix, ids, count, out);
    const StoredTable& stored = *std::get<1>(table);
    const auto group = reinterpret_cast<std::uint8_t*>(s.scratch(thread));
    for (std::size_t done = 0; done < count; done += kGroupRows) {
        const std::size_t rows = std::min(kGroupRows, count - done);
        std::int64_t order[kGroupRows];
        std::int32_t places[kGroupRows];
        for (std::size_t i = 0; i < rows; ++i) {
            order[i] = ids[done + i];
            places[i] = static_cast<std::int32_t>(i);
        }
        const Matrix packed{stored.shape.format, rows, stored.shape.columns, group};
        pack_panels(packed, {stored.rows.data, stored.rows.stride, order}, 0, 1, group);
        s.kernels.embedding(packed, places, rows, out + done * packed.columns);
    }
}

struct EmbeddingOp final : RowOp {
    TableRef table;
    Register out;

    const char* name() const override { return "embedding"; }
    Registers writes() const override { return {out}; }
    void check(const StepInput& input) const override {
        require_below(input.token_ids, input.num_tokens, shape_of(table).rows, kOutside);
    }
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(scratch_bytes(table)); }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(out), thread);
        gather(s, table, s.input.token_ids + range.first, range.size(), s.data(out) + range.first * s.width(out),
               thread);
    }
};

// Writes the rows of those tokens that this rank's part of the table has into this rank's slot.
struct OwnRowsOp final : RowOp {
    TableRef table;
    std::uint32_t first, collective;
    Register out;

    const char* name() const override { return "own_rows"; }
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(scratch_bytes(table)); }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(out), thread);
        const std::size_t width = s.width(out);
        float* slot = s.own_slot(collective);
        for (std::size_t row = range.first; row < range.last; ++row) {
            const std::int32_t id = s.input.token_ids[row] - static_cast<std::int32_t>(first);
            if (id >= 0 && static_cast<std::size_t>(id) < shape_of(table).rows)
                gather(s, table, &id, 1, slot + row * width, thread);
        }
    }
};

// Copies each token's row from the slot of the rank that has it. Rank r has the rows before ends[r]. As it is recorded
// it has this rank's table, too, which an OwnRowsOp before it gets.
struct FetchRowsOp final : CollectiveOp {
    TableRef table;
    std::uint32_t first = 0;  // row of the vocabulary that this rank's table begins with
    std::vector<std::uint32_t> ends;
    Register out;

    const char* name() const override { return "fetch_rows"; }
    Registers writes() const override { return {out}; }
    void lower(Lowering& lowering) override {
        auto own = std::make_unique<OwnRowsOp>();
        own->table = std::move(table);
        own->first = first;
        own->collective = collective;
        own->out = out;
        width = shape_of(own->table).columns;
        lowering.before.push_back(std::move(own));
    }
    void finish(Finishing& finishing) override { require_room_in_slots(finishing, Rows::tokens, width); }
    void check(const StepInput& input) const override {
        require_below(input.token_ids, input.num_tokens, ends.back(), kOutside);
    }
    void run(StepContext& s, int thread) override {
        if (!s.exchange(collective, thread)) return;
        const auto range = s.share(s.rows(out), thread);
        for (std::size_t row = range.first; row < range.last; ++row) {
            int rank = 0;
            while (static_cast<std::uint32_t>(s.input.token_ids[row]) >= ends[static_cast<std::size_t>(rank)]) ++rank;
            std::memcpy(s.data(out) + row * width, s.slot(rank, collective) + row * width, width * sizeof(float));
        }
    }

private:
    std::size_t width = 0;
};

}  // namespace

Register record::embedding(Plan& plan, TableRef table) {
    auto op = std::make_unique<EmbeddingOp>();
    op->out = plan.new_register({.width = shape_of(table).columns, .rows = Rows::tokens});
    op->table = std::move(table);
    return plan.append(std::move(op)).out;
}

Register record::embedding_over(Plan& plan, TransportRef group, TableRef table, std::vector<std::uint32_t> ends) {
    auto op = std::make_unique<FetchRowsOp>();
    op->out = plan.new_register({.width = shape_of(table).columns, .rows = Rows::tokens});
    op->collective = plan.new_collective(group);
    const auto rank = static_cast<std::size_t>(group->rank);
    require(ends.size() == static_cast<std::size_t>(group->size) && std::is_sorted(ends.begin(), ends.end()) &&
                ends.back() <= kMaxRows && ends[rank] - (rank ? ends[rank - 1] : 0) == shape_of(table).rows,
            "a table that is not this rank's part of the vocabulary");
    op->table = std::move(table);
    op->first = rank ? ends[rank - 1] : 0;
    op->ends = std::move(ends);
    return plan.append(std::move(op)).out;
}

}  // namespace karat
