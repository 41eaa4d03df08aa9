// Every op that a plan can have: a function records it. Its file beside this one has the rest: what it checks, what it
// is lowered to, how threads share its work; the arithmetic is the kernels' (contract/kernels.h). `each_named` has the
// names by which Python calls it.
//
// Functions throw std::invalid_argument for registers and weights that do not fit each other.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/weights.h"

namespace karat::record {

// Rows of the table by token id.
Register embedding(Plan& plan, TableRef table);
// The same for a vocabulary cut over ranks. `table` has this rank's rows; rank r has the rows before ends[r]. Each rank
// looks up the rows it owns, and the others copy them. Nothing is added.
Register embedding_over(Plan& plan, TransportRef group, TableRef table, std::vector<std::uint32_t> ends);
// One norm for each weight.size() columns of a row. With `plus_one` it multiplies by 1 + weight.
Register rms_norm(Plan& plan, Register x, VectorRef weight, double eps, bool plus_one);
// One norm for each `size` columns of a row.
Register l2_norm(Plan& plan, Register x, std::size_t size, double eps, double factor);
// The sum of squares of each row of q, and of k: two columns. Leaf l of the tree has the columns before leaves[l]; k's
// first k_first are another rank's. With `group` (which may be null) the ranks' sums are added along the fixed tree.
Register square_sums(Plan& plan, Register q, Register k, std::vector<std::uint32_t> q_leaves,
                     std::vector<std::uint32_t> k_leaves, std::size_t k_first, TransportRef group);
// The norm of a part of rows of `count` numbers, of which column `part` of square_sums is the sum.
Register part_norm(Plan& plan, Register x, Register squares, VectorRef weight, double eps, std::size_t part,
                   std::size_t count);
// One register for each matrix. leaf_ends: see LinearArgs.
Registers linear(Plan& plan, Register x, std::vector<MatrixRef> weights, std::vector<VectorRef> biases,
                 std::vector<std::uint32_t> leaf_ends);
// A row-parallel layer, of which `weight` has this rank's columns. The ranks' sums are added along the fixed tree, then
// the bias.
Register linear_over(Plan& plan, TransportRef group, Register x, MatrixRef weight, VectorRef bias,
                     std::vector<std::uint32_t> leaf_ends);
// Puts the ranks' columns side by side, this rank's from column `first` on. The result [rows, width] lies in the
// group's memory; a plan has one.
Register gather(Plan& plan, TransportRef group, Register x, std::size_t first, std::size_t width);
Register silu_mul(Plan& plan, Register gate, Register up);
Register gelu_mul(Plan& plan, Register gate, Register up);
// Each number of a row of `gate` is for as many adjoining columns of x.
Register sigmoid_mul(Plan& plan, Register x, Register gate);
Register add(Plan& plan, Register x, Register y);
Register mul(Plan& plan, Register x, Register y);
Register sigmoid(Plan& plan, Register x);
Register scale(Plan& plan, Register x, double factor);
// By the one number of `weight`.
Register scale_by(Plan& plan, Register x, VectorRef weight);
Register soft_cap(Plan& plan, Register x, double cap);
// Of each head_dim columns of a row the first table->head_dim are turned.
Register rope(Plan& plan, Register x, RopeRef table, std::size_t head_dim);
void kv_write(Plan& plan, Register k, Register v, CacheRef cache);
// Query head h reads KV head (first_head + h) / group_heads of the cache, and each of its KV heads is read. `sinks` may
// be null; a cap of 0 is none.
Register attention(Plan& plan, Register q, CacheRef cache, float scale, std::size_t window, std::size_t group_heads,
                   std::size_t first_head, VectorRef sinks, float cap);
// The `chosen` experts of each row of logits: their ids, which are integers, and their weights.
// `bias` and `scales` may be null. Without groups both numbers of them are 1.
std::pair<Register, Register> route(Plan& plan, Register logits, std::size_t chosen, bool by_sigmoid, bool renormalised,
                                    std::size_t groups, std::size_t chosen_groups, double outside, double plus,
                                    double least, double scale, VectorRef bias, VectorRef scales);
// Experts of a mixture: matrices of each, and biases of each or none.
struct ExpertMatrices { std::vector<MatrixRef> gates, ups, downs; };
struct ExpertBiases { std::vector<VectorRef> gates, ups, downs; };
struct Clamp { float limit, alpha; };  // of the activation (kernels.h, clamped_mul)
struct GatedUnit {
    bool by_gelu;                // else silu
    std::optional<Clamp> clamp;  // in its place
};
// The leaves of a sum over experts. Leaf l has the columns of `downs` before ends[l], of all experts, and biases of
// `downs` come after the root; or it has the experts before ends[l], counted from the first one.
struct ExpertLeaves {
    std::vector<std::uint32_t> ends;
    bool by_columns;
};
// The sum of what the chosen experts give for each row. The experts are those from id `first` on, others are left out.
// A leaf is a sum in order of id. With `group` (which may be null) the ranks' sums are added along the fixed tree.
Register experts(Plan& plan, TransportRef group, Register x, Register ids, Register weights, ExpertMatrices matrices,
                 ExpertBiases biases, GatedUnit unit, ExpertLeaves leaves, std::size_t first);
// Parts of each row. A row is `groups` equal pieces, each of which has a share of every part, in order.
Registers split(Plan& plan, Register x, const std::vector<std::size_t>& widths, std::size_t groups);
// weight [channels, taps]; `bias` may be null. The state's first array is [taps - 1, channels].
Register causal_conv(Plan& plan, Register x, VectorRef weight, StateRef state, VectorRef bias, bool silu);
Register decay(Plan& plan, Register a, VectorRef bias, VectorRef rate, bool of_log);
// Value head h reads key head key_heads[h]. The state's second array is [value heads, k_dim, v_dim].
Register delta_rule(Plan& plan, Register q, Register k, Register v, Register decay, Register beta, StateRef state,
                    std::vector<std::size_t> key_heads);
// The wanted rows of x, which has the step's tokens.
Register select_rows(Plan& plan, Register x);

// Calls bind(name, function, names of its arguments after the plan ...) for each op that Python calls with arguments as
// they are. They have the names of the fields of the op's record in karat.ops.api.
template <class Bind>
void each_named(Bind bind) {
    bind("embedding", embedding, "table");
    bind("rms_norm", rms_norm, "x", "weight", "eps", "plus_one");
    bind("part_norm", part_norm, "x", "squares", "weight", "eps", "part", "count");
    bind("silu_mul", silu_mul, "gate", "up");
    bind("gelu_mul", gelu_mul, "gate", "up");
    bind("sigmoid_mul", sigmoid_mul, "x", "gate");
    bind("add", add, "x", "y");
    bind("mul", mul, "x", "y");
    bind("sigmoid", sigmoid, "x");
    bind("scale", scale, "x", "factor");
    bind("scale_by", scale_by, "x", "weight");
    bind("soft_cap", soft_cap, "x", "cap");
    bind("rope", rope, "x", "table", "head_dim");
    bind("kv_write", kv_write, "k", "v", "cache");
    bind("decay", decay, "a", "bias", "rate", "of_log");
    bind("select_rows", select_rows, "x");
}

}  // namespace karat::record
