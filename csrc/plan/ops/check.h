// Checks of a step that several ops make.
#pragma once

#include "plan/op.h"
#include "plan/require.h"

namespace karat {

// Throws std::invalid_argument with `message` unless all numbers are 0 … end - 1.
inline void require_below(const std::int32_t* numbers, std::size_t count, std::size_t end, const char* message) {
    std::uint32_t largest = 0;  // a negative number is larger than any other
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<std::uint32_t>(numbers[i]));
    require(count == 0 || largest < end, message);
}

// Throws std::invalid_argument unless the step's sequences cut its tokens, and each reads and writes a state of
// `slots`. That no slot is written that another sequence reads or writes is checked where a batch is built.
inline void require_states(const StepInput& input, std::size_t slots) {
    require(
        input.query_starts[0] == 0 && static_cast<std::size_t>(input.query_starts[input.num_seqs]) == input.num_tokens,
        "query_starts do not fit");
    for (std::size_t seq = 0; seq < input.num_seqs; ++seq) {
        require(input.query_starts[seq] < input.query_starts[seq + 1], "query_starts do not fit");
        const std::int32_t read = input.state_reads[seq], write = input.state_writes[seq];
        require(read >= -1 && (read < 0 || static_cast<std::size_t>(read) < slots) && write >= 0 &&
                    static_cast<std::size_t>(write) < slots,
                "a slot outside the states");
        require(read != write, "a state that is read and written in one slot");
    }
}

}  // namespace karat
