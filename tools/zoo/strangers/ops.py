"""The arithmetic, in float32."""

import numpy as np

from tools.zoo.strangers.checkpoint import Config


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x: [tokens, hidden]."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def inverse_frequencies(config: Config) -> np.ndarray:
    """[head_dim / 2]; the llama3 scaling slows the frequencies whose wave is longer than the trained context."""
    powers = np.arange(0, config.head_dim, 2) / config.head_dim
    frequencies = 1 / config.theta**powers
    s = config.scaling
    if s:
        turns = s["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        share = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        share = np.clip(share, 0, 1)  # 1: as it is, 0: slowed by the whole factor
        frequencies = share * frequencies + (1 - share) * frequencies / s["factor"]
    return frequencies.astype(np.float32)


def rope_tables(frequencies: np.ndarray, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, each [positions, head_dim / 2]."""
    angles = np.arange(positions)[:, None] * frequencies.astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Turn features i and i + head_dim / 2. x: [tokens, heads, head_dim]; cos, sin: [tokens, head_dim / 2]."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, in float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def float16(x: np.ndarray) -> np.ndarray:
    """The nearest float16, in float32."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)
