// A plan: a model's ops, recorded once and run for every step, in one call without Python.
//
// Ops read and write registers, [rows, width] of float32, int32 or bytes in one arena. Rows are the step's tokens, its
// sequences, or the tokens whose logits are wanted. Every thread of the pool runs the whole list of ops. Ops on single
// rows give each thread a share of the rows, the same share in every op, so two of them need no barrier between them.
// Linear layers and attention hand out items of work as threads ask for them. No result depends on who computes what.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/op.h"
#include "plan/require.h"
#include "runtime/crew.h"
#include "runtime/memory.h"

namespace karat {

// A value that a cache could not hold.
struct Overflow {
    bool found = false;
    std::size_t layer = 0;
    bool is_value = false;  // V, else K
    std::size_t token = 0, head = 0;
    float number = 0;
};

// The functions of ops/ops.h record one op each. `finish` then runs the passes: `fuse` joins ops that follow one
// another (fuse.h), `lower` cuts ops with a barrier inside into one op for each side of it, and the rest places
// registers and barriers.
class Plan {
public:
    // Weights in block formats are multiplied by integers of the width `activations`.
    Plan(const Kernels& kernels, const IntegerKernels& integers, int num_threads,
         Activations activations = Activations::int16);
    ~Plan();

    // ---- recording: throws std::invalid_argument for what does not fit, and in a finished plan
    Register input(std::size_t width, Rows rows, Element element = Element::f32);
    const RegisterInfo& recorded_info(Register reg) const;
    const RegisterInfo& info(Register reg, Element element = Element::f32) const;  // of this element
    Register new_register(const RegisterInfo& info);
    template <class RecordedOp>
    RecordedOp& append(std::unique_ptr<RecordedOp> op) {
        RecordedOp& recorded = *op;
        ops_.push_back(std::move(op));
        return recorded;
    }
    const Ops& ops() const { return ops_; }
    const Kernels& kernels() const { return kernels_; }
    Activations activations() const { return activations_; }
    // The number of a new collective. All of a plan are of one group of ranks.
    std::uint32_t new_collective(const TransportRef& group);

    // Ends the recording and allocates for the largest step. Registers in `kept` may be read after a run. Without
    // `fusing` no ops are joined: for tests, which compare the bits.
    void finish(const StepLimits& limits, const Registers& kept, bool fusing = true);

    // ---- running
    bool finished() const { return finished_; }  // not after a finish that failed
    // For a register of the finished plan; std::out_of_range for anything else.
    const RegisterInfo& finished_info(Register reg) const { return registers_.at(static_cast<std::size_t>(reg)); }
    std::size_t rows(Register reg) const {  // of the last step
        return num_rows_[static_cast<std::size_t>(finished_info(reg).rows)];
    }
    std::size_t max_rows(Register reg) const { return limits_.of(finished_info(reg).rows); }  // that there is room for
    std::uint8_t* bytes(Register reg) {
        std::uint8_t* const outside = finished_info(reg).outside;
        return outside ? outside : arena_.bytes() + offsets_[static_cast<std::size_t>(reg)];
    }
    float* floats(Register reg) { return reinterpret_cast<float*>(bytes(reg)); }
    const std::vector<std::string>& fused() const { return fused_; }  // the rules that `finish` applied, in order
    std::vector<std::string> op_names() const;                        // in the order in which they run
    // Runs a step. Returns a value that a cache could not hold, if there was one: what happened then is undefined.
    // Throws std::invalid_argument for a step that does not fit, std::runtime_error while another thread runs one, or
    // if the ranks abandoned the step.
    Overflow run(const StepInput& input);

private:
    friend class StepContext;
    struct Life {
        std::size_t first, last;  // op
    };

    void lower();
    std::vector<std::size_t> cut_into_phases();
    std::vector<Life> lives(const Registers& kept) const;
    void place_registers(const std::vector<Life>& lives, const std::vector<std::size_t>& phases);
    void finish_ops();
    void check(const StepInput& input) const;
    void work(StepContext& step, int thread);
    static void task(void* argument, int thread);

    const Kernels& kernels_;
    const IntegerKernels& integers_;
    const Activations activations_;
    Crew crew_;
    TransportRef group_;  // null without collectives
    std::uint32_t num_collectives_ = 0;
    std::vector<RegisterInfo> registers_;
    Ops ops_;
    std::vector<bool> barrier_before_;
    std::vector<std::size_t> offsets_;                        // of registers in the arena, in bytes
    std::unique_ptr<std::atomic<std::uint64_t>[]> counters_;  // [threads, ops]: taken (StepContext::take)
    Memory arena_, scratch_, workspace_;
    std::size_t scratch_stride_ = 0;
    std::atomic_flag running_;
    bool recording_ = true, finished_ = false;
    std::vector<std::string> fused_;
    StepLimits limits_{};
    std::array<std::size_t, kNumRows> num_rows_{};
};

}  // namespace karat
