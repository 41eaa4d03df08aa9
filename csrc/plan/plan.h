// A plan: a model's ops, recorded once and run for every step, in one call without Python.
//
// Ops read and write registers, [rows, width] float32 in one arena. Rows are the step's tokens, or the tokens whose
// logits are wanted. Every thread of the pool runs the whole list of ops. Ops on single rows give each thread a share
// of the rows, the same share in every op, so two of them need no barrier between them. Linear layers and attention
// hand out items of work as threads ask for them. No result depends on who computes what.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "contract/kernels.h"
#include "group/collective.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace karat {

inline constexpr std::size_t kMaxCount = 0x7fffffff;  // of what a step counts in int32

// Throws std::invalid_argument unless the condition holds. Checks of a step pass a literal: a step allocates nothing.
inline void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}
inline void require(bool condition, const std::string& message) { require(condition, message.c_str()); }

struct OwnedMatrix {
    Matrix matrix;
    Memory memory;
};

struct OwnedCache {
    CacheType type;
    std::size_t num_layers, num_slots, num_kv_heads, head_dim;
    std::size_t layer_bytes;  // of a region
    Memory memory;

    OwnedCache(CacheType type, std::size_t layers, std::size_t slots, std::size_t kv_heads, std::size_t head_dim);
    CacheView layer(std::size_t index) const;
};

struct RopeTable {
    std::size_t positions, head_dim;
    std::vector<float> cos, sin;  // [positions, head_dim / 2]
};

struct Vector { std::vector<float> values; };

using MatrixRef = std::shared_ptr<const OwnedMatrix>;
using VectorRef = std::shared_ptr<const Vector>;
using CacheRef = std::shared_ptr<const OwnedCache>;
using RopeRef = std::shared_ptr<const RopeTable>;

enum class Rows : int { tokens, wanted };

using Register = int;  // its number in a plan
using Registers = std::vector<Register>;

// The inputs of a step (karat.batch.ForwardBatch).
struct StepInput {
    BatchView batch;
    const std::int32_t *token_ids, *wanted;
    std::size_t num_wanted;
};

// The state of a step, shared by all threads (plan_ops.h).
class StepContext;

struct LinearOp;

struct Op {
    virtual ~Op() = default;
    virtual const char* name() const = 0;
    virtual Registers reads() const { return {}; }
    virtual Registers writes() const { return {}; }
    virtual void run(StepContext& step, int thread) = 0;
    // Whether it is an op on single rows: a thread's share is the same rows in each of them.
    virtual bool by_rows() const { return false; }
    // Whether a barrier must come before it: it shows other ranks what all threads computed.
    virtual bool needs_barrier_before() const { return false; }
    // Whether it has nothing to do in this step. Threads then need no barrier before it.
    virtual bool is_idle(const StepContext&) const { return false; }
};

// Calls record one op each. `finish` then runs the passes: `fuse` joins ops that follow one another (fuse.h), `lower`
// cuts ops with a barrier inside into one op for each side of it, and the rest places registers and barriers.
class Plan {
public:
    using Register = karat::Register;

    // Weights in block formats are multiplied by integers of the width `activations`.
    Plan(const Kernels& kernels, const IntegerKernels& integers, int num_threads,
         Activations activations = Activations::int16);
    ~Plan();

    // ---- recording
    Register input(std::size_t width, Rows rows);
    Register embedding(MatrixRef table);
    // The same for a vocabulary cut over ranks. `table` has this rank's rows; rank r has the rows before ends[r]. Each
    // rank looks up the rows it owns, and the others copy them. Nothing is added.
    Register embedding_over(TransportRef group, MatrixRef table, std::vector<std::uint32_t> ends);
    Register rms_norm(Register x, VectorRef weight, double eps);
    // One register for each matrix. leaf_ends: see LinearArgs.
    Registers linear(Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                     std::vector<std::uint32_t> leaf_ends);
    // A row-parallel layer, of which `weight` has this rank's columns. The ranks' sums are added along the fixed tree,
    // then the bias.
    Register linear_over(TransportRef group, Register x, MatrixRef weight, VectorRef bias,
                         std::vector<std::uint32_t> leaf_ends);
    // Puts the ranks' columns side by side, this rank's from column `first` on. The result [rows, width] lies in the
    // group's memory.
    Register gather(TransportRef group, Register x, std::size_t first, std::size_t width);
    Register silu_mul(Register gate, Register up);
    Register add(Register x, Register y);
    Register rope(Register x, RopeRef table);
    void kv_write(Register k, Register v, CacheRef cache, std::size_t layer);
    // Query head h reads KV head (first_head + h) / group_heads of the cache, and each of its KV heads is read.
    Register attention(Register q, CacheRef cache, std::size_t layer, float scale, std::size_t window,
                       std::size_t group_heads, std::size_t first_head);
    Register select(Register x);

    // Ends the recording and allocates for the largest step: max_tokens tokens, max_wanted rows whose logits are
    // wanted, max_seqs sequences, max_context keys of a sequence. Registers in `kept` may be read after a run. Without
    // `fusing` no ops are joined: for tests, which compare the bits.
    void finish(std::size_t max_tokens, std::size_t max_wanted, std::size_t max_seqs, std::size_t max_context,
                const Registers& kept, bool fusing = true);

    // ---- running
    bool finished() const { return finished_; }  // not after a finish that failed
    // For a register of the finished plan; std::out_of_range for anything else.
    float* data(Register reg) {
        float* outside = registers_.at(static_cast<std::size_t>(reg)).outside;
        return outside ? outside : arena_.floats() + offsets_.at(static_cast<std::size_t>(reg));
    }
    std::size_t width(Register reg) const { return registers_.at(static_cast<std::size_t>(reg)).width; }
    std::size_t rows(Register reg) const;                             // of the last step
    std::size_t max_rows(Register reg) const;                         // that there is room for
    std::size_t num_heads() const { return num_heads_; }              // of attention's queries
    const std::vector<std::string>& fused() const { return fused_; }  // the rules that `finish` applied, in order
    std::vector<std::string> op_names() const;                        // in the order in which they run
    // Runs a step. Returns a value that a cache could not hold, if there was one: what happened then is undefined.
    // Throws std::invalid_argument for a step that does not fit, std::runtime_error while another thread runs one, or
    // if the ranks abandoned the step.
    struct Overflow {
        bool found = false;
        std::size_t layer = 0;
        bool is_value = false;  // V, else K
        std::size_t token = 0, head = 0;
        float number = 0;
    };
    Overflow run(const StepInput& input, float* scores, std::size_t score_seq);

private:
    friend class StepContext;
    struct Info {
        std::size_t width;
        Rows rows;
        bool is_input = false;
        float* outside = nullptr;  // where it lies, if not in the arena
    };
    struct Life {
        std::size_t first, last;  // op
    };
    struct Item {  // of attention
        std::uint32_t seq, kv_head, first, last;
        std::int32_t split;  // -1: tokens first … last - 1
        std::uint32_t part;  // where the split's partial results go
    };

    void lower();
    std::unique_ptr<Op> quantise(LinearOp& linear);
    std::vector<std::size_t> cut_into_phases();
    std::vector<Life> lives(const Registers& kept) const;
    void place_registers(const std::vector<Life>& lives, const std::vector<std::size_t>& phases);
    void allocate();
    Register new_register(std::size_t width, Rows rows);
    template <class RecordedOp>
    Register record(std::unique_ptr<RecordedOp> op);
    std::uint32_t collective(const TransportRef& group, std::size_t width, Rows rows);
    const Info& info_of(Register reg) const;
    std::unique_ptr<LinearOp> linear_op(Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                                        std::vector<std::uint32_t> leaf_ends);
    void check(const StepInput& input) const;
    void list_items(const BatchView& batch);
    void work(StepContext& step, int thread);
    static void task(void* argument, int thread);

    const Kernels& kernels_;
    const IntegerKernels& integers_;
    const Activations activations_;
    std::shared_ptr<Pool> pool_;
    std::vector<Info> registers_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<bool> barrier_before_;
    std::vector<std::size_t> offsets_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> counters_;  // [threads, ops]: taken (StepContext::take)
    Memory arena_, scratch_, parts_;
    std::size_t scratch_stride_ = 0, own_digits_ = 0, part_floats_ = 0;
    std::vector<Item> items_;
    std::atomic_flag running_;
    bool recording_ = true, finished_ = false;
    std::vector<std::string> fused_;
    std::size_t max_tokens_ = 0, max_wanted_ = 0, max_seqs_ = 0, max_context_ = 0;
    std::size_t num_tokens_ = 0, num_wanted_ = 0;
    // Limits that the inputs of a step are checked against.
    std::size_t vocab_size_ = 0, num_positions_ = 0, num_slots_ = 0, num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
    std::size_t group_heads_ = 0, first_head_ = 0;
    // Collectives of the plan, and the widest rows that ranks put into slots, by kind of rows.
    TransportRef group_;
    std::uint32_t num_collectives_ = 0;
    std::size_t slot_widths_[2] = {0, 0}, whole_width_ = 0;
    Rows whole_rows_ = Rows::wanted;
    bool has_embedding_ = false, has_rope_ = false, has_cache_ = false;
};

}  // namespace karat
