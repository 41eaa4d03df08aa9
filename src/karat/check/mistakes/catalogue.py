"""The bugs that the diagnosis names: title and remedy. The file of each part has the arithmetic and proposes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from karat.check.mistakes.part import Part
from karat.check.model.graph import Edits


@dataclass(frozen=True, slots=True)
class Bug:
    """title: what is wrong; remedy: what to change."""

    title: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute wrongly: nodes with other parameters.

    fitted: a number of it comes from the trace; part: where it is made, None: everywhere (karat.check.mistakes.parts).
    outside: what the same mistake changes elsewhere.
    """

    bug: str
    detail: str
    edits: Edits
    fitted: bool = False
    part: Part | None = None
    outside: Edits = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What is the same mistake at another place."""
        return (self.bug, self.detail if self.part is None else f"{self.detail}, {self.part.text}")

    @property
    def text(self) -> str:
        """How it is made, in words."""
        extent = "" if self.part is None or not self.part.extent else f" ({self.part.extent})"
        return f"{self.key[1]}{extent}"


BUGS: Mapping[str, Bug] = {
    "mask-nan": Bug(
        "the mask turns visible scores into NaN (0 × -inf)",
        "build the mask as booleans and fill with it (masked_fill, where); never multiply by -inf",
    ),
    "mask-off-by-one": Bug("the causal mask is off by one", "a token at position p sees keys 0 … p, itself included"),
    "mask-missing": Bug("there is no causal mask", "a token must not see keys after its own position"),
    "mask-misaligned": Bug(
        "the causal mask counts from the start of the chunk, not of the sequence",
        "compare absolute positions: with keys in the cache, row i of a chunk sees start + i + 1 keys",
    ),
    "mask-window": Bug(
        "the sliding window is ignored, off by one, or on the wrong layers",
        "a token sees itself and the window - 1 keys before it, on the layers that config.json names",
    ),
    "mask-empty": Bug(
        "slots of the cache that nobody has written are seen",
        "mask every slot from the length of the sequence on, in the last block too",
    ),
    "scale-missing": Bug("the softmax scale is missing", "multiply scores by head_dim ** -0.5"),
    "scale-twice": Bug(
        "the softmax scale is applied twice", "multiply scores by head_dim ** -0.5 once, or q, not both"
    ),
    "scale-wrong": Bug(
        "the softmax scale is another number", "multiply scores by head_dim ** -0.5 of the config's head_dim"
    ),
    "softmax-axis": Bug("softmax runs over the wrong axis", "normalise over keys, the last axis of the scores"),
    "gqa-tile": Bug(
        "query heads read other KV heads than their own (tiled, where they should be interleaved)",
        "query head h reads KV head h // (heads / kv_heads): repeat_interleave, not repeat",
    ),
    "kv-stale": Bug(
        "the KV cache is read or written wrongly", "write K and V of each token to its own slot before attention"
    ),
    "kv-dtype": Bug(
        "the KV cache has another type than the trace states",
        "store K and V in the type that is meant, or state kv_dtype as it is",
    ),
    "heads-order": Bug(
        "the heads are joined in the wrong order",
        "bring the output to [tokens, heads, head_dim] before flattening it; rows of q, k and v are [heads, head_dim]",
    ),
    "rope-pairing": Bug(
        "RoPE turns neighbours (2i, 2i+1) where the model pairs (i, i + head_dim/2), or the reverse",
        "use rotate_half for Hugging Face weights; interleaved pairs belong to Meta's original layout",
    ),
    "rope-theta": Bug(
        "RoPE's frequencies are not the model's",
        "take rope_theta and the whole of rope_scaling / rope_parameters from config.json",
    ),
    "rope-position": Bug(
        "RoPE is given the wrong positions", "positions are absolute, count from 0, and go on at decode"
    ),
    "rope-sign": Bug("RoPE turns the wrong way", "x1·cos - x2·sin and x2·cos + x1·sin"),
    "rope-missing-k": Bug("RoPE is not applied", "turn both q and k"),
    "rope-before-bias": Bug("the bias is added after RoPE", "add the bias to the product, and turn their sum"),
    "rope-on-v": Bug("RoPE is applied to v", "turn q and k only"),
    "rope-twice": Bug("RoPE is applied twice", "store k in the cache as it was turned once, and do not turn it again"),
    "rope-partial": Bug(
        "RoPE has the wrong number of dimensions",
        "take head_dim (and partial_rotary_factor) from config.json, not hidden_size / heads",
    ),
    "qk-norm-missing": Bug(
        "q or k is not normalised, or only after RoPE", "apply q_norm and k_norm per head, before RoPE"
    ),
    "bias-missing": Bug(
        "a bias is not added", "load the bias and add it; check that every tensor of the checkpoint is used"
    ),
    "bias-times-tp": Bug(
        "the bias is added once a rank", "add the bias of a row-parallel layer after the reduction, or on one rank only"
    ),
    "shard-dim": Bug(
        "the weight is sharded along the wrong axis",
        "cut column-parallel weights along out_features, row-parallel ones along in_features",
    ),
    "shard-order": Bug(
        "a rank has the part of another rank",
        "rank r takes part r of every weight, and gathers parts in the order of ranks",
    ),
    "reduce-missing": Bug(
        "partial sums are not reduced, or reduced twice", "reduce a row-parallel layer's output exactly once"
    ),
    "qkv-split": Bug(
        "fused q, k, v are cut at the wrong places", "cut in the order and the sizes in which they were stacked"
    ),
    "gate-up-split": Bug(
        "fused gate and up are cut at the wrong places",
        "cut gate and up for the ranks, each by itself, then stack them",
    ),
    "gate-up-swapped": Bug("gate and up are exchanged", "silu belongs to gate_proj: silu(gate) * up"),
    "gate": Bug(
        "a gate is left out, not a sigmoid, or for the wrong elements",
        "multiply by sigmoid(gate); each of its numbers is for as many adjoining elements: one, a head, or the row",
    ),
    "multiplier": Bug(
        "a result is not multiplied by the model's number", "multiply once, by the number that config.json names"
    ),
    "expert-choice": Bug(
        "tokens go to other experts than the router's logits say",
        "take the experts with the largest logits, num_experts_per_tok of them; their ids begin with 0",
    ),
    "expert-weights": Bug(
        "what experts give is weighted wrongly",
        "weights are the softmax over all experts; with norm_topk_prob they are divided by the sum of the chosen ones",
    ),
    "shared-expert": Bug(
        "the shared expert or the others are left out", "add sigmoid(shared_expert_gate(x)) * shared_expert(x)"
    ),
    "expert-matrices": Bug(
        "experts compute with matrices of other experts",
        "a stack of matrices has them in order of the experts' ids, from 0 on",
    ),
    "expert-biases": Bug(
        "biases of the experts are left out or not weighted",
        "add each bias to its product; a row's weight multiplies what its expert gives, the last bias included",
    ),
    "clamp": Bug(
        "the limits or constants of the experts' activation are others",
        "(up + 1) * gate * sigmoid(1.702 * gate), with gate at most swiglu_limit, and up from its negative to it",
    ),
    "sinks": Bug(
        "attention sinks are left out or are other numbers",
        "the softmax has one more score for each head, its sink, which is not scaled and whose weight is dropped",
    ),
    "activation": Bug("another activation function is used", "use the one that hidden_act names"),
    "transposed": Bug(
        "the weight is read as [in, out] (row-major taken for column-major)",
        "weights are stored [out_features, in_features], row-major",
    ),
    "weight-element": Bug(
        "one element of a weight is another number", "compare the file with the original; load it anew"
    ),
    "tie-ignored": Bug(
        "lm_head is not the embedding although config.json ties them", "use model.embed_tokens.weight as the head"
    ),
    "head-other": Bug(
        "lm_head is none of the model's matrices", "load lm_head.weight of this very checkpoint; check how it is cut"
    ),
    "tie-wrong": Bug("the embedding serves as lm_head although the model has a head of its own", "load lm_head.weight"),
    "norm-eps": Bug("the norm has another eps", "take rms_norm_eps from config.json"),
    "norm-eps-outside": Bug("the norm adds eps outside the root", "x / sqrt(mean(x²) + eps)"),
    "norm-offset": Bug("the norm multiplies by 1 + weight", "only Gemma's norms store weight - 1"),
    "norm-mean": Bug("the norm takes the mean off (LayerNorm)", "RMSNorm: x / sqrt(mean(x²) + eps) · weight, no mean"),
    "norm-weight": Bug("the norm's weight is not applied", "multiply by the weight"),
    "norm-swapped": Bug(
        "the norm has the weight of another norm", "check which of the norms goes before attention, MLP and head"
    ),
    "norm-missing": Bug("a norm is skipped", "apply it"),
    "residual-missing": Bug(
        "the residual is missing or taken from the wrong place", "add the block's input, before its norm"
    ),
    "residual-twice": Bug("the residual or the block's output is added twice", "add each once"),
    "embed-scale": Bug(
        "the embedding is multiplied by a constant", "only Gemma's embeddings are scaled by sqrt(hidden_size)"
    ),
    "embed-row": Bug(
        "other rows of the embedding are read", "look up the token id itself; check added tokens and padding"
    ),
    "layer-skipped": Bug("a layer is not computed", "compute num_hidden_layers layers, each on the result before it"),
    "logits-row": Bug(
        "the logits are those of another token",
        "take the row of the last token of each sequence in the batch: cu_seqlens[1:] - 1",
    ),
    "layer-prefix": Bug("the weight of another layer is used", "match tensor names whole: layers.1. is not layers.10."),
    "weight-swapped": Bug("the weight of another part of the layer is used", "check the mapping of tensor names"),
    "dtype-trunc": Bug("float32 weights are truncated to bfloat16", "round to nearest even"),
    "dtype-narrow": Bug(
        "weights are rounded to a narrower type", "keep the stored type, or say in the trace what is computed in"
    ),
    "narrow-arithmetic": Bug(
        "inside an op it is computed in a narrower type",
        "compute angles, softmax, norms and sums in float32, whatever type weights and results are stored in",
    ),
    "dtype-misread": Bug("float16 is read as bfloat16, or the reverse", "read the tensor's own dtype"),
    "byte-order": Bug("the bytes of the weights are swapped", "safetensors and GGUF are little-endian"),
    "quant-nibbles": Bug(
        "the bits of quantised numbers are put together wrongly",
        "within a run of bytes the low nibbles are the first half of the numbers, the high ones the second; upper bits "
        "that are kept apart (Q5, Q3_K, Q6_K) belong to them",
    ),
    "quant-zero": Bug(
        "quantised numbers have the wrong offset",
        "subtract 8 (4 bits), 16 (5 bits), 32 (6 bits); bytes of Q8_0 are signed",
    ),
    "quant-min-sign": Bug(
        "the minimum of quantised blocks is not applied as it should be",
        "Q4_1 and Q5_1 add it, Q2_K, Q4_K and Q5_K subtract it",
    ),
    "quant-scale": Bug(
        "quantised numbers have the scale of another block, or a scale unpacked wrongly",
        "each block and sub-block has its own scale; 6-bit scales keep their upper bits apart, and those of Q3_K and "
        "IQ4_XS are 32 too large; those of Q6_K are signed",
    ),
    "overflow-fp16": Bug("a value overflows float16", "accumulate and keep activations in float32 or bfloat16"),
    "gguf-permute": Bug(
        "rows of q and k are permuted as in Llama's GGUF files",
        "undo the permutation for Llama, and for no other family",
    ),
    "softcap": Bug("values are capped by tanh", "only Gemma 2 has soft caps"),
    "logit-scale": Bug(
        "the logits are multiplied by a constant", "leave them as they are, or apply the model's own scale"
    ),
    "bos": Bug("the beginning-of-sequence token is missing or doubled", "add it exactly as tokenizer_config.json says"),
    "template": Bug(
        "the conversation is rendered otherwise", "use the model's chat template with the generation prompt"
    ),
    "special-tokens": Bug(
        "special tokens are split into ordinary pieces", "look special tokens up before splitting text"
    ),
    "eos": Bug(
        "a text does not end at the model's end tokens",
        "stop at every id of eos_token_id and generation_config.json, and at no other",
    ),
    "token-range": Bug(
        "the tokenizer has ids that the embedding has no rows for",
        "take the tokenizer that belongs to these weights, or add the rows",
    ),
    "greedy": Bug(
        "with temperature 0, a token that was not the likeliest was taken",
        "take the argmax of the raw logits, the lowest id of equals",
    ),
}
