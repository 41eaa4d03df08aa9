// What a plan is made of: registers, ops on them, and what a step brings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "contract/kernels.h"
#include "group/collective.h"
#include "plan/step_input.h"

namespace karat {

using Register = int;  // its number in a plan
using Registers = std::vector<Register>;

// What a register's rows are: how many it has is known when a step begins. Pairs of a row and an expert are no kind of
// rows: only a step finds out how many there are, and each mixture of a plan has a number of its own. A row of their
// registers has room for all pairs of a row, and the ops that a mixture is lowered to share the number
// (ops/experts.cpp, Sorted).
enum class Rows : int { tokens, sequences, wanted };  // wanted: the tokens whose logits are
inline constexpr std::size_t kNumRows = 3;            // kinds of them

enum class Element : int { f32, u8, i32 };
inline constexpr std::size_t kElementBytes[] = {sizeof(float), 1, sizeof(std::int32_t)};  // by Element

struct RegisterInfo {
    std::size_t width;  // elements of a row
    Rows rows;
    Element element = Element::f32;
    bool is_input = false;
    std::uint8_t* outside = nullptr;  // where it lies, if not in the arena

    std::size_t row_bytes() const { return width * kElementBytes[static_cast<int>(element)]; }
    bool is_like(const RegisterInfo& other) const {
        return width == other.width && rows == other.rows && element == other.element;
    }
};

// The largest step that a plan is made for.
struct StepLimits {
    std::size_t tokens, wanted, seqs;
    std::size_t context;  // keys of a sequence

    std::size_t of(Rows rows) const { return rows == Rows::tokens ? tokens : rows == Rows::sequences ? seqs : wanted; }
};

// The state of a step, shared by all threads (step.h).
class StepContext;

struct Op;
using Ops = std::vector<std::unique_ptr<Op>>;

// Where an op puts what it is lowered to: ops that run just before it and just after it.
struct Lowering {
    std::vector<RegisterInfo>& registers;
    const IntegerKernels& integers;
    Ops before, after;

    const RegisterInfo& info(Register reg) const { return registers[static_cast<std::size_t>(reg)]; }
    Register new_register(const RegisterInfo& info) {
        registers.push_back(info);
        return static_cast<Register>(registers.size() - 1);
    }
};

// What ops ask of a plan that is being finished. Memory is asked for by each op and shared by all.
struct Finishing {
    const StepLimits limits;
    const Kernels& kernels;
    const IntegerKernels& integers;
    const Transport* const group;     // null in a plan without collectives
    std::size_t scratch_bytes = 0;    // for each thread, while an op runs
    std::size_t workspace_bytes = 0;  // for all threads, while an op runs and those that it was lowered to

    void ask_for_scratch(std::size_t bytes) { scratch_bytes = std::max(scratch_bytes, bytes); }
    void ask_for_workspace(std::size_t bytes) { workspace_bytes = std::max(workspace_bytes, bytes); }
};

struct Op {
    std::size_t index = 0;  // in the finished plan

    virtual ~Op() = default;
    virtual const char* name() const = 0;
    virtual Registers reads() const { return {}; }
    virtual Registers writes() const { return {}; }
    // Whether it is an op on single rows: a thread's share is the same rows in each of them.
    virtual bool by_rows() const { return false; }
    // Whether a barrier must come before it: it shows other ranks what all threads computed, or a thread reads rows of
    // another's share.
    virtual bool needs_barrier_before() const { return false; }

    // An op that needs a barrier inside becomes one op for each side of it. Called once, after ops were fused.
    virtual void lower(Lowering&) {}
    // Called once, after that: asks for memory, and makes its own. Throws std::invalid_argument if steps within the
    // limits cannot be run.
    virtual void finish(Finishing&) {}

    // Throws std::invalid_argument for inputs that it would read or write outside of what it has. Called for every step
    // by one thread, of all ops before any begins.
    virtual void check(const StepInput&) const {}
    // Prepares what its threads share in the step, without allocating. Called by one thread.
    virtual void begin(const StepInput&) {}
    // Whether it has nothing to do in this step. Threads then need no barrier before it.
    virtual bool is_idle(const StepContext&) const { return false; }
    // Does a thread's share of the work.
    virtual void run(StepContext& step, int thread) = 0;
};

struct RowOp : Op {
    bool by_rows() const override { return true; }
};

}  // namespace karat
