// The form of a step's numbers, which karat.batch draws.
#include "plan/step_input.h"

#include "plan/require.h"

namespace karat {
namespace {

enum class Length : int { tokens, seqs, bounds, rows, table };  // bounds: seqs + 1

template <class Owner>
struct Column {
    const char* name;
    Length length;
    const std::int32_t* Owner::* view;
};
#define KARAT_OWN(name, length) {#name, Length::length, &StepInput::name},
#define KARAT_OF_GROUP(name, length) {#name, Length::length, &GroupColumns::name},
constexpr Column<StepInput> kColumns[] = {KARAT_COLUMNS(KARAT_OWN)};
constexpr Column<GroupColumns> kGroupColumns[] = {KARAT_GROUP_COLUMNS(KARAT_OF_GROUP)};

struct Numbers {
    const std::int32_t *at, *end;

    const std::int32_t* take(std::size_t count) {
        require(count <= static_cast<std::size_t>(end - at), "numbers that are no batch");
        return (at += count) - count;
    }
    std::size_t size() {
        const std::int32_t number = *take(1);
        require(number >= 0, "numbers that are no batch");
        return static_cast<std::size_t>(number);
    }
};

std::size_t length_of(Length length, const StepInput& step, std::size_t max_blocks) {
    switch (length) {
        case Length::tokens: return step.num_tokens;
        case Length::seqs: return step.num_seqs;
        case Length::bounds: return step.num_seqs + 1;
        case Length::rows: return step.num_wanted;
        case Length::table: return step.num_seqs * max_blocks;
    }
    throw std::logic_error("no such length");
}

}  // namespace

std::vector<std::string> step_columns() {
    std::vector<std::string> names;
    for (const auto& column : kColumns) names.emplace_back(column.name);
    for (const auto& column : kGroupColumns) names.emplace_back(column.name);
    return names;
}

StepInput::StepInput(const std::int32_t* numbers, std::size_t count) {
    Numbers rest{numbers, numbers + count};
    num_tokens = rest.size();
    num_seqs = rest.size();
    num_wanted = rest.size();
    block_size = rest.size();
    const std::size_t num_groups = rest.size();
    require(num_groups <= count, "numbers that are no batch");
    groups.resize(num_groups);
    for (GroupColumns& group : groups) group.max_blocks = rest.size();
    for (const auto& column : kColumns) this->*column.view = rest.take(length_of(column.length, *this, 0));
    for (GroupColumns& group : groups)
        for (const auto& column : kGroupColumns)
            group.*column.view = rest.take(length_of(column.length, *this, group.max_blocks));
    require(rest.at == rest.end, "numbers that are no batch");
}

}  // namespace karat
