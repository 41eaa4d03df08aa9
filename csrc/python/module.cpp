// karat._native: packed matrices, caches and plans for Python. Memory safety is checked here and in the plan; typed
// errors with names and remedies are raised by karat.ops.native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>

#include "group/collective.h"
#include "plan/ops/ops.h"
#include "plan/plan.h"
#include "python/constants_module.h"
#include "python/gil.h"
#include "python/k_fit_module.h"
#include "python/limits_module.h"
#include "python/packing_module.h"
#include "python/sampling_module.h"
#include "runtime/isa.h"

namespace nb = nanobind;
using namespace karat;

namespace {

template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Ids = In<std::int32_t, 1>;

template <class E, std::size_t N>
E named(const std::string& name, const std::pair<const char*, E> (&names)[N]) {
    for (const auto& [known, value] : names)
        if (name == known) return value;
    throw std::invalid_argument("unknown name '" + name + "'");
}

nb::ndarray<nb::numpy, const float, nb::ndim<1>> values_of(nb::handle self) {
    const auto& vector = nb::cast<const Vector&>(self);
    return nb::ndarray<nb::numpy, const float, nb::ndim<1>>(vector.values.data(), {vector.values.size()}, self);
}

VectorRef vector_of(In<float, 1> values) {
    return std::make_shared<const Vector>(Vector{{values.data(), values.data() + values.shape(0)}});
}

RopeRef rope_of(In<float, 2> cos, In<float, 2> sin) {
    if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1))
        throw std::invalid_argument("cosines and sines of different shapes");
    auto table = std::make_shared<RopeTable>();
    table->positions = cos.shape(0);
    table->head_dim = 2 * cos.shape(1);
    table->cos.assign(cos.data(), cos.data() + cos.size());
    table->sin.assign(sin.data(), sin.data() + sin.size());
    return table;
}

// A cache group: the caches of layers, which are numbers in the model.
std::vector<CacheRef> cache_of(const std::string& dtype, const std::vector<std::size_t>& layers, std::size_t slots,
                               std::size_t kv_heads, std::size_t head_dim, std::size_t group) {
    static constexpr std::pair<const char*, CacheType> kTypes[] = {
        {"float32", CacheType::f32}, {"float16", CacheType::f16}, {"bfloat16", CacheType::bf16}};
    const auto owner =
        std::make_shared<const OwnedCache>(named(dtype, kTypes), layers.size(), slots, kv_heads, head_dim);
    std::vector<CacheRef> caches;
    for (const std::size_t layer : layers)
        caches.push_back(std::make_shared<const LayerCache>(LayerCache{owner, caches.size(), group, layer}));
    return caches;
}

// The states of layers, whose arrays have these shapes.
std::vector<StateRef> states_of(std::size_t layers, std::size_t slots, std::vector<OwnedState::Shape> shapes) {
    const auto owner = std::make_shared<const OwnedState>(layers, slots, std::move(shapes));
    std::vector<StateRef> states;
    while (states.size() < layers)
        states.push_back(std::make_shared<const LayerState>(LayerState{owner, states.size()}));
    return states;
}

// An array of a slot of a layer's state as it lies: the last axis is rounded up to 16 numbers, or in strips.
nb::ndarray<nb::numpy, float, nb::ndim<1>> array_of_state(nb::handle self, std::size_t array, std::size_t slot) {
    const auto& state = nb::cast<const LayerState&>(self);
    const OwnedState& owner = *state.owner;
    if (array >= owner.shapes.size() || slot >= owner.num_slots) throw std::invalid_argument("no such array or slot");
    const std::size_t end = array + 1 < owner.offsets.size() ? owner.offsets[array + 1] : owner.slot_floats;
    return nb::ndarray<nb::numpy, float, nb::ndim<1>>(state.data(array, static_cast<std::int32_t>(slot)),
                                                      {end - owner.offsets[array]}, self);
}

using Lost = std::tuple<std::size_t, bool, std::size_t, std::size_t, float>;
using Scores = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

std::optional<Lost> run_step(Plan& plan, Ids batch, std::optional<Scores> scores, std::size_t score_seq) {
    // A copy: once the interpreter's lock is released, other threads may write to numbers that were already checked.
    const std::vector<std::int32_t> numbers(batch.data(), batch.data() + batch.size());
    StepInput input(numbers.data(), numbers.size());
    if (scores) {
        const std::int32_t* const starts = input.query_starts;
        if (score_seq >= input.num_seqs ||
            scores->shape(1) != static_cast<std::size_t>(starts[score_seq + 1] - starts[score_seq]) ||
            scores->shape(2) != static_cast<std::size_t>(input.context_lens[score_seq]))
            throw std::invalid_argument("scores of another shape than the sequence's");
        input.scores = scores->data();
        input.score_seq = score_seq;
        input.score_heads = scores->shape(0);
    }
    Overflow lost;
    {
        const GilReleased released;
        lost = plan.run(input);
    }
    if (!lost.found) return std::nullopt;
    return Lost{lost.layer, lost.is_value, lost.token, lost.head, lost.number};
}

float* floats_of(Plan& plan, Register reg) {
    require(plan.finished(), "the plan is not finished");
    require(plan.finished_info(reg).element == Element::f32, "a register of other elements");
    return plan.floats(reg);
}

std::int32_t* integers_of(Plan& plan, Register reg) {
    require(plan.finished(), "the plan is not finished");
    require(plan.finished_info(reg).element == Element::i32, "a register of other elements");
    return reinterpret_cast<std::int32_t*>(plan.bytes(reg));
}

template <class Number>
void fill(Plan& plan, Register reg, In<Number, 2> values) {
    Number* to;
    if constexpr (std::is_same_v<Number, float>) to = floats_of(plan, reg);
    else to = integers_of(plan, reg);
    if (values.shape(1) != plan.finished_info(reg).width || values.shape(0) > plan.max_rows(reg))
        throw std::invalid_argument("rows that do not fit the register");
    std::copy(values.data(), values.data() + values.size(), to);
}

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Bytes slot_of(nb::handle self, int rank, std::uint32_t number) {
    const auto& memory = nb::cast<const SharedMemory&>(self);
    if (rank < 0 || rank >= memory.size()) throw std::invalid_argument("no such rank");
    return Bytes(memory.slot(rank, number), {memory.slot_bytes()}, self);
}

Bytes whole_of(nb::handle self) {
    const auto& memory = nb::cast<const SharedMemory&>(self);
    return Bytes(memory.whole(), {memory.whole_bytes()}, self);
}

// Only ranks publish and wait: a watcher (rank -1) is refused.
SharedMemory& of_a_rank(SharedMemory& memory) {
    if (memory.rank() < 0) throw std::invalid_argument("who watches the ranks is none of them");
    return memory;
}

// Whether all ranks have published `number`; not if the step was given up. Raises TimeoutError after `limit_s` seconds.
bool wait_for(SharedMemory& memory, std::uint32_t number, double limit_s) {
    Outcome outcome;
    {
        const GilReleased released;
        outcome = of_a_rank(memory).wait(number, limit_s);
    }
    if (outcome == Outcome::late) {
        PyErr_SetString(PyExc_TimeoutError, "other ranks have not done their part");
        throw nb::python_error();
    }
    return outcome == Outcome::done;
}

TransportRef transport(const std::shared_ptr<SharedMemory>& memory) {
    (void)of_a_rank(*memory);
    return transport_of(memory);
}

template <class Number>
using Rows2 = nb::ndarray<nb::numpy, Number, nb::ndim<2>>;

std::variant<Rows2<float>, Rows2<std::int32_t>> view(nb::handle self, Register reg) {
    Plan& plan = nb::cast<Plan&>(self);
    const RegisterInfo& info = plan.finished_info(reg);
    if (info.element == Element::i32)
        return Rows2<std::int32_t>(integers_of(plan, reg), {plan.rows(reg), info.width}, self);
    return Rows2<float>(floats_of(plan, reg), {plan.rows(reg), info.width}, self);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Karat's C++ kernels. Use them through karat.ops.native.";
    m.attr("compiler") = KARAT_COMPILER;
    m.attr("types_digest") = KARAT_TYPES_DIGEST;
    // A model that a program keeps until its end is no leak to report on its terminal.
    nb::set_leak_warnings(false);
    m.def("compiled_isas", &compiled_isas, "Names of all kernel builds in this extension, whatever this CPU can run.");
    m.def("supported_isas", &supported_isas,
          "Names of the kernel builds that this CPU can run; the last is the fastest.");
    m.def("refused_isas", &refused_isas,
          "Kernel builds that this CPU could run and the system does not allow, each with the reason.");
    m.def("limit_isas", &limit_isas, "Names of the instruction sets that Limits can measure here.");
    m.def("formats", [] {
        std::vector<std::string> names;
        for (const FormatInfo& info : kFormats) names.emplace_back(info.name);
        return names;
    });

    bind_packing(m);
    nb::class_<Vector>(m, "Vector")
        .def("__len__", [](const Vector& self) { return self.values.size(); })
        .def("values", &values_of);
    m.def("vector", &vector_of, nb::arg("values").noconvert());
    nb::class_<RopeTable>(m, "RopeTable").def_prop_ro("head_dim", [](const RopeTable& self) { return self.head_dim; });
    m.def("rope_table", &rope_of, nb::arg("cos").noconvert(), nb::arg("sin").noconvert());
    nb::class_<LayerCache>(m, "Cache")
        .def_prop_ro("num_kv_heads", [](const LayerCache& self) { return self.owner->num_kv_heads; })
        .def_prop_ro("head_dim", [](const LayerCache& self) { return self.owner->head_dim; });
    m.def("cache", &cache_of, nb::arg("dtype"), nb::arg("layers"), nb::arg("num_slots"), nb::arg("num_kv_heads"),
          nb::arg("head_dim"), nb::arg("group") = 0);

    nb::class_<LayerState>(m, "State")
        .def_prop_ro("shapes", [](const LayerState& self) { return self.owner->shapes; })
        .def("array", &array_of_state, nb::arg("array"), nb::arg("slot"));
    m.def("states", &states_of, nb::arg("layers"), nb::arg("num_slots"), nb::arg("shapes"));

    nb::class_<SharedMemory>(m, "SharedMemory")
        .def(nb::init<int, int, int, std::size_t, std::size_t, bool>(), nb::arg("descriptor"), nb::arg("rank"),
             nb::arg("size"), nb::arg("slot_bytes"), nb::arg("whole_bytes"), nb::arg("spins"))
        .def_static("num_bytes", &SharedMemory::bytes, nb::arg("size"), nb::arg("slot_bytes"), nb::arg("whole_bytes"))
        .def_prop_ro("rank", &SharedMemory::rank)
        .def_prop_ro("size", &SharedMemory::size)
        .def("begin", &SharedMemory::begin, nb::arg("number"))
        .def("abandon", &SharedMemory::abandon, nb::arg("number"))
        .def_prop_ro("abandoned", &SharedMemory::abandoned)
        .def("is_waiting", &SharedMemory::is_waiting, nb::arg("rank"))
        .def("progress", &SharedMemory::progress, nb::arg("rank"))
        .def("stir", [](SharedMemory& self) { of_a_rank(self).stir(); })
        .def("reserve", &SharedMemory::reserve, nb::arg("count"))
        .def("slot", &slot_of, nb::arg("rank"), nb::arg("number"))
        .def("whole", &whole_of)
        .def(
            "publish", [](SharedMemory& self, std::uint32_t number) { of_a_rank(self).publish(number); },
            nb::arg("number"))
        .def("wait", &wait_for, nb::arg("number"), nb::arg("limit_s") = 3600.0);

    // Arrays are never converted: a copy of the wrong type or layout would hide a mistake.
    nb::class_<Plan> plan(m, "Plan");
    plan.def(
            "__init__",
            [](Plan* self, const std::string& isa, int num_threads, const std::string& activations) {
                static constexpr std::pair<const char*, Activations> kWidths[] = {
                    {"int8", Activations::int8}, {"int16", Activations::int16}, {"int24", Activations::int24}};
                new (self) Plan(kernels_for(isa), integer_kernels_for(isa), num_threads, named(activations, kWidths));
            },
            nb::arg("isa"), nb::arg("num_threads"), nb::arg("activations") = "int16")
        .def(
            "input",
            [](Plan& self, std::size_t width, const std::string& rows, const std::string& element) {
                static constexpr std::pair<const char*, Rows> kKinds[] = {
                    {"tokens", Rows::tokens}, {"sequences", Rows::sequences}, {"wanted", Rows::wanted}};
                static constexpr std::pair<const char*, Element> kElements[] = {{"float32", Element::f32},
                                                                                {"int32", Element::i32}};
                return self.input(width, named(rows, kKinds), named(element, kElements));
            },
            nb::arg("width"), nb::arg("rows") = "tokens", nb::arg("element") = "float32")
        .def(
            "embedding_over",
            [](Plan& self, const std::shared_ptr<SharedMemory>& group, TableRef table,
               std::vector<std::uint32_t> ends) {
                return record::embedding_over(self, transport(group), std::move(table), std::move(ends));
            },
            nb::arg("group"), nb::arg("table"), nb::arg("ends"))
        .def("linear", &record::linear, nb::arg("x"), nb::arg("weights"), nb::arg("biases"), nb::arg("leaf_ends"),
             nb::sig("def linear(self, x: int, weights: Sequence[Matrix], biases: Sequence[Vector | None], "
                     "leaf_ends: Sequence[int]) -> list[int]"))
        .def(
            "linear_over",
            [](Plan& self, const std::shared_ptr<SharedMemory>& group, Register x, MatrixRef weight, VectorRef bias,
               std::vector<std::uint32_t> leaf_ends) {
                return record::linear_over(self, transport(group), x, std::move(weight), std::move(bias),
                                           std::move(leaf_ends));
            },
            nb::arg("group"), nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("leaf_ends"))
        .def(
            "gather",
            [](Plan& self, const std::shared_ptr<SharedMemory>& group, Register x, std::size_t first,
               std::size_t width) { return record::gather(self, transport(group), x, first, width); },
            nb::arg("group"), nb::arg("x"), nb::arg("first"), nb::arg("width"))
        .def("attention", &record::attention, nb::arg("q"), nb::arg("cache"), nb::arg("scale"), nb::arg("window"),
             nb::arg("group_heads"), nb::arg("first_head"), nb::arg("sinks").none(), nb::arg("cap"))
        .def("split", &record::split, nb::arg("x"), nb::arg("widths"), nb::arg("groups"))
        .def("l2_norm", &record::l2_norm, nb::arg("x"), nb::arg("size"), nb::arg("eps"), nb::arg("factor"))
        .def(
            "square_sums",
            [](Plan& self, Register q, Register k, std::vector<std::uint32_t> q_leaves,
               std::vector<std::uint32_t> k_leaves, std::size_t k_first,
               const std::optional<std::shared_ptr<SharedMemory>>& group) {
                return record::square_sums(self, q, k, std::move(q_leaves), std::move(k_leaves), k_first,
                                           group ? transport(*group) : nullptr);
            },
            nb::arg("q"), nb::arg("k"), nb::arg("q_leaves"), nb::arg("k_leaves"), nb::arg("k_first"),
            nb::arg("group").none() = nb::none())
        .def("causal_conv", &record::causal_conv, nb::arg("x"), nb::arg("weight"), nb::arg("state"),
             nb::arg("bias").none(), nb::arg("silu"))
        .def("delta_rule", &record::delta_rule, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("decay"),
             nb::arg("beta"), nb::arg("state"), nb::arg("key_heads"))
        .def("route", &record::route, nb::arg("logits"), nb::arg("chosen"), nb::arg("by_sigmoid"),
             nb::arg("renormalised"), nb::arg("groups"), nb::arg("chosen_groups"), nb::arg("outside"), nb::arg("plus"),
             nb::arg("least"), nb::arg("scale"), nb::arg("bias").none(), nb::arg("scales").none())
        .def(
            "experts",
            [](Plan& self, Register x, Register ids, Register weights, std::vector<MatrixRef> gates,
               std::vector<MatrixRef> ups, std::vector<MatrixRef> downs, std::vector<VectorRef> gate_biases,
               std::vector<VectorRef> up_biases, std::vector<VectorRef> down_biases, bool by_gelu,
               std::optional<std::pair<float, float>> clamp, std::vector<std::uint32_t> leaf_ends, bool by_columns,
               std::size_t first, const std::optional<std::shared_ptr<SharedMemory>>& group) {
                record::GatedUnit by{by_gelu, {}};
                if (clamp) by.clamp = {clamp->first, clamp->second};
                return record::experts(self, group ? transport(*group) : nullptr, x, ids, weights,
                                       {std::move(gates), std::move(ups), std::move(downs)},
                                       {std::move(gate_biases), std::move(up_biases), std::move(down_biases)}, by,
                                       {std::move(leaf_ends), by_columns}, first);
            },
            nb::arg("x"), nb::arg("ids"), nb::arg("weights"), nb::arg("gates"), nb::arg("ups"), nb::arg("downs"),
            nb::arg("gate_biases"), nb::arg("up_biases"), nb::arg("down_biases"), nb::arg("by_gelu"),
            nb::arg("clamp").none(), nb::arg("leaf_ends"), nb::arg("by_columns"), nb::arg("first"),
            nb::arg("group").none() = nb::none())
        .def(
            "finish",
            [](Plan& self, std::size_t tokens, std::size_t wanted, std::size_t seqs, std::size_t context,
               const Registers& kept, bool fusing) { self.finish({tokens, wanted, seqs, context}, kept, fusing); },
            nb::arg("max_tokens"), nb::arg("max_wanted"), nb::arg("max_seqs"), nb::arg("max_context"), nb::arg("kept"),
            nb::arg("fusing") = true)
        .def_prop_ro("fused", &Plan::fused)
        .def_prop_ro("op_names", &Plan::op_names)
        .def("write", &fill<float>, nb::arg("register"), nb::arg("values").noconvert())
        .def("write", &fill<std::int32_t>, nb::arg("register"), nb::arg("values").noconvert())
        .def("read", &view, nb::arg("register"))
        .def("run", &run_step, nb::arg("batch").noconvert(), nb::arg("scores").noconvert() = nb::none(),
             nb::arg("score_seq") = 0);
    record::each_named(
        [&](const char* name, auto* function, auto... arguments) { plan.def(name, function, nb::arg(arguments)...); });
    m.def("step_columns", &step_columns, "The columns of the numbers that a plan runs, in order.");
    bind_constants(m);
    bind_k_fit(m);
    bind_sampling(m);
    bind_limits(m);
}
