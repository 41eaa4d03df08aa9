"""One op that computes in a narrower type is named, with the type and the place, from torch's own roundings.

Covers: karat.check.mistakes.narrow.
"""

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.budget import SearchBudget  # noqa: E402
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.narrow import narrow  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.trace.format import Array, Trace  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402
from tools.zoo.run import reduced  # noqa: E402

LAYER = "model.layers.0"
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def subject() -> Subject:
    changes = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return draw(f"{SEED}-narrow", family="qwen2", steps="whole", changes=changes, lengths=(60, 72))


@pytest.fixture(scope="module")
def trace(subject: Subject) -> Trace:
    return record_hf(subject.hf, subject.steps)


def _said(subject: Subject, trace: Trace, name: str, wrong: Array) -> list[str]:
    replay = Replay(subject.graph, subject.weights, Trace(trace.info, {**trace.arrays, name: wrong}))
    (finding,) = replay.findings((name,))
    return [e.variants[0].detail for e in narrow(replay, finding, SearchBudget())] if finding.is_wrong else []


def _op(subject: Subject, trace: Trace, name: str, to: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The op with everything in another type, as torch computes it."""

    def of(role: str) -> torch.Tensor:
        return torch.from_numpy(np.array(trace.arrays[role if role.startswith("model.emb") else f"{LAYER}.{role}"]))

    layer = subject.hf.model.layers[0]
    match name:
        case "mlp.gate_proj":
            return to(of("post_attention_layernorm")) @ to(layer.mlp.gate_proj.weight).T
        case "self_attn.v_proj":
            v = layer.self_attn.v_proj
            return torch.nn.functional.linear(to(of("input_layernorm")), to(v.weight), to(v.bias))
        case "input_layernorm":
            x = to(of("model.embed_tokens"))
            scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + layer.input_layernorm.variance_epsilon)
            return x * scale * to(layer.input_layernorm.weight)
        case "self_attn.weights":
            return torch.softmax(to(of("self_attn.scores")), -1)
        case "mlp.act":
            return torch.nn.functional.silu(to(of("mlp.gate_proj"))) * to(of("mlp.up_proj"))
        case "attention_residual":
            return to(of("model.embed_tokens")) + to(of("self_attn.o_proj"))
    raise AssertionError(name)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("mlp.gate_proj", "x, the weight, the product"),
        ("self_attn.v_proj", "x, the weight, the bias, the result"),
        ("input_layernorm", "everything"),
        ("self_attn.weights", "scores, the result"),
        ("mlp.act", "everything"),
        ("attention_residual", "both, the result"),
    ],
)
def test_an_op_in_a_narrower_type_is_named(subject: Subject, trace: Trace, name: str, where: str, dtype: str) -> None:
    with torch.no_grad():
        wrong = _op(subject, trace, name, lambda x: x.to(TYPES[dtype])).float().numpy()
    assert f"{dtype} inside {name}: {where}" in _said(subject, trace, f"{LAYER}.{name}", wrong)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("where", ["frequencies", "cos, sin"])
def test_rope_of_a_narrow_table_is_named(subject: Subject, trace: Trace, where: str, dtype: str) -> None:
    q = torch.from_numpy(np.array(trace.arrays[f"{LAYER}.self_attn.q_proj"]))
    q = q.reshape(len(q), 4, -1)
    frequencies, kind = subject.hf.model.rotary_emb.inv_freq, TYPES[dtype]
    if where == "frequencies":
        frequencies = frequencies.to(kind).float()
    angles = torch.arange(len(q)).float()[:, None] * frequencies
    cos, sin = (f(angles)[:, None] for f in (torch.cos, torch.sin))
    if where == "cos, sin":
        cos, sin = cos.to(kind).float(), sin.to(kind).float()
    a, b = q.chunk(2, dim=-1)
    wrong = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).numpy()
    assert _said(subject, trace, f"{LAYER}.self_attn.q_rope", wrong) == [f"{dtype} inside self_attn.q_rope: {where}"]


def test_a_square_that_overflows_at_one_token_is_named(subject: Subject, trace: Trace) -> None:
    """One token's numbers are so large that their squares are infinite in float16, and its row is zeros."""
    x = np.array(trace.arrays["model.embed_tokens"])
    x[3] *= 400 / np.abs(x[3]).max()
    made = Trace(trace.info, {**trace.arrays, "model.embed_tokens": x})
    norm = subject.hf.model.layers[0].input_layernorm
    with torch.no_grad():
        of = torch.from_numpy(x)
        square = of.half().pow(2).mean(-1, keepdim=True).float()
        wrong = (of * torch.rsqrt(square + norm.variance_epsilon) * norm.weight).numpy()
    assert not wrong[3].any()
    said = _said(subject, made, f"{LAYER}.input_layernorm", wrong)
    assert said == ["float16 inside input_layernorm: x², its mean"]


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1e-2])
def test_errors_of_the_same_size_that_are_no_rounding_get_no_name(subject: Subject, trace: Trace, size: float) -> None:
    rng = np.random.default_rng(1)
    for name in ("mlp.gate_proj", "input_layernorm", "self_attn.weights", "self_attn.q_rope", "attention_residual"):
        right = np.array(trace.arrays[f"{LAYER}.{name}"])
        wrong = (right * (1 + size * rng.uniform(-1, 1, right.shape))).astype(np.float32)
        assert _said(subject, trace, f"{LAYER}.{name}", wrong) == [], name


def test_a_softmax_whose_sum_is_added_up_in_float16_is_named(subject: Subject, trace: Trace) -> None:
    """The sum of a row strays by some units, and with it the whole row."""
    scores = np.array(trace.arrays[f"{LAYER}.self_attn.scores"]).astype(np.float16)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = np.zeros((*powers.shape[:-1], 1), np.float16)
    for key in range(powers.shape[-1]):
        total += powers[..., key : key + 1]
    wrong = (powers / total).astype(np.float32)
    assert "float16 inside self_attn.weights: everything" in _said(subject, trace, f"{LAYER}.self_attn.weights", wrong)


def test_a_result_rounded_to_float16_is_no_overflow(subject: Subject, trace: Trace) -> None:
    name = f"{LAYER}.attention_residual"
    wrong = np.array(trace.arrays[name]).astype(np.float16).astype(np.float32)
    made = Trace(trace.info, {**trace.arrays, name: wrong})
    _, (item,) = Diagnoser(subject.graph, subject.weights, made, seconds=1).look((name,))
    assert {bug for e in item.explanations for bug in e.bugs} == {"narrow-arithmetic"}


def _norm_in_bfloat16(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.bfloat16()
        square = y.float().square().mean(-1, keepdim=True)
        normed = (y.float() * torch.rsqrt(square + module.variance_epsilon)).bfloat16()
        return (module.weight.bfloat16() * normed).float()

    return forward


@pytest.mark.parametrize(("what", "kind"), [("norm", "layers"), ("activation", "layers"), ("norm", "logits")])
def test_a_narrow_op_is_told_where_only_layers_or_logits_are_recorded(what: str, kind: str) -> None:
    """By bits where few numbers lie near a tie, else by the size of what is left."""
    changes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
    changes |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-6}
    subject = draw(f"{SEED}-narrow-{what}", family="qwen2", steps="whole", changes=changes, lengths=(20, 32))
    for name, module in subject.hf.named_modules():
        if what == "norm" and name.endswith("norm"):
            module.forward = _norm_in_bfloat16(module)
        if what == "activation" and name.endswith("act_fn"):
            module.forward = lambda gate: torch.nn.functional.silu(gate.half()).float()
    replay = Replay(subject.graph, subject.weights, reduced(record_hf(subject.hf, subject.steps), kind))
    wrong = [finding for finding in replay.findings() if finding.is_wrong]
    assert len(wrong) == {"norm": 3 if kind == "layers" else 1, "activation": 2}[what], f"KARAT_SEED={SEED}"
    where = {
        "norm": ("bfloat16 inside every norm", "bfloat16 inside model.norm"),
        "activation": ("float16 inside mlp.act",),
    }
    for finding in wrong:
        found = narrow(replay, finding, SearchBudget())
        details = [e.variants[0].detail for e in found]
        assert details and all(detail.startswith(where[what]) for detail in details), f"KARAT_SEED={SEED}: {details}"
