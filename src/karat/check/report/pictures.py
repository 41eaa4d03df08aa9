"""The pictures of a report: SVG and PNG inside the page, so that a browser fetches nothing."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from karat.check.diagnosis.wording import times
from karat.check.model.graph import Graph
from karat.check.replay.finding import LIMIT, Finding
from karat.check.session.streamed import AttentionMap

Pixels = NDArray[np.uint8]  # [rows, columns, 3]

_GREEN, _YELLOW, _RED = (226, 243, 232), (250, 224, 140), (190, 20, 35)
_COLUMNS = 256  # of a heat map over tokens; more tokens share columns


def chart(findings: Sequence[Finding], graph: Graph) -> str:
    """One dot a result, in the order of computation; the height is the logarithm of the ratio."""
    width, height, left = 1000, 280, 60
    largest = max([100.0, *(f.ratio for f in findings if math.isfinite(f.ratio))])
    low, high = -2.0, math.log10(largest) + 0.3

    def y(ratio: float) -> float:
        log = high if math.isinf(ratio) else max(low, math.log10(max(ratio, 1e-9)))
        return height - 30 - (log - low) / (high - low) * (height - 50)

    def x(index: int) -> float:
        return left + 8 + index * (width - left - 16) / max(1, len(findings) - 1)

    lines = []
    for ratio, colour, word in ((1.0, "#11632b", "floor"), (LIMIT, "#a8071a", "limit")):
        lines.append(f"<line x1='{left}' x2='{width}' y1='{y(ratio):.1f}' y2='{y(ratio):.1f}' stroke='{colour}'/>")
        lines.append(f"<text x='{width - 30}' y='{y(ratio) - 4:.1f}'>{word}</text>")
    for power in range(int(low), int(high) + 1):
        lines.append(f"<text x='4' y='{y(10.0**power) + 4:.1f}'>10<tspan dy='-5'>{power}</tspan></text>")
    dots, labelled = [], -1e9
    previous: int | None = None
    for index, finding in enumerate(findings):
        layer = graph.nodes[finding.name].layer
        if layer is not None and layer != previous and x(index) - labelled > 24:
            labelled = x(index)
            lines.append(f"<line x1='{labelled:.1f}' x2='{labelled:.1f}' y1='10' y2='{height - 26}' stroke='#eee'/>")
            lines.append(f"<text x='{labelled:.1f}' y='{height - 8}'>{layer}</text>")
        previous = layer
        colour = "#a8071a" if finding.is_wrong else "#2457a6"
        title = escape(f"{finding.name}: {times(finding.ratio)}, error {finding.error:.3g}")
        dots.append(
            f"<circle cx='{x(index):.1f}' cy='{y(finding.ratio):.1f}' r='3' fill='{colour}'>"
            f"<title>{title}</title></circle>"
        )
    lines.append(f"<text x='4' y='{height - 8}'>layer</text>")
    return f"<svg viewBox='0 0 {width} {height}' role='img' aria-label='errors'>{''.join(lines)}{''.join(dots)}</svg>"


def by_layer_and_op(findings: Sequence[Finding], graph: Graph) -> str:
    """A cell for each op of each layer."""
    ratios = {(graph.nodes[f.name].layer, graph.nodes[f.name].role): f.ratio for f in findings}
    roles = list(dict.fromkeys(role for layer, role in ratios if layer is not None))
    layers = sorted({layer for layer, _ in ratios if layer is not None})
    head = "<tr><th>op</th>" + "".join(f"<th class=n>{layer}</th>" for layer in layers) + "</tr>"
    rows = []
    for role in roles:
        cells = []
        for layer in layers:
            ratio = ratios.get((layer, role))
            colour = "" if ratio is None else f" style='background: rgb{tuple(int(c) for c in _colours(ratio))}"
            colour += "" if ratio is None else "; color: #fff'" if ratio > 5 * LIMIT else "'"
            text = "" if ratio is None else "∞" if math.isinf(ratio) else times(ratio).removesuffix(" ×")
            cells.append(f"<td class=n{colour}>{escape(text)}</td>")
        rows.append(f"<tr><th>{escape(role)}</th>{''.join(cells)}</tr>")
    return f"<div class='scroll'><table class='dense'>{head}{''.join(rows)}</table></div>"


def by_layer_and_token(findings: Sequence[Finding], graph: Graph, num_tokens: int) -> str:
    """A row for each layer, a column for each token: the largest ratio of any op there."""
    layers = graph.config.num_layers
    cells = np.zeros((layers, num_tokens))
    for finding in findings:
        layer = graph.nodes[finding.name].layer
        if layer is not None and len(finding.by_token) == num_tokens:
            cells[layer] = np.maximum(cells[layer], finding.by_token)
    share = -(-num_tokens // _COLUMNS)
    starts = np.arange(0, num_tokens, share)
    cells = np.maximum.reduceat(cells, starts, axis=1)
    height = max(6, min(24, 480 // layers))
    note = f", {share} tokens a column" if share > 1 else ""
    words = f"left to right: tokens 0 to {num_tokens - 1}{note}; top to bottom: layers 0 to {layers - 1}"
    style = f"width: 100%; height: {layers * height}px"
    image = picture(_colours(cells), f"largest error of {layers} layers and {num_tokens} tokens", style)
    return f"{image}<p class='axis'>{words}</p>"


def attention(kept: AttentionMap) -> str:
    """Weights of one head: rows are tokens, columns are keys; black is 1."""
    weights = np.clip(np.nan_to_num(np.asarray(kept.weights, np.float64)), 0, 1)
    grey = (255 * (1 - np.sqrt(weights))).astype(np.uint8)
    title = f"{kept.name.removesuffix('.weights')}, head {kept.head}: {kept.why}"
    size = max(160, min(320, 3 * len(grey)))
    image = picture(np.repeat(grey[..., None], 3, axis=2), title, f"width: {size}px; height: {size}px")
    return f"<figure>{image}<figcaption>{escape(title)}</figcaption></figure>"


def picture(pixels: Pixels, alt: str, style: str) -> str:
    """An image whose pixels stay squares."""
    encoded = base64.b64encode(png(pixels)).decode()
    return f"<img class='pixels' alt='{escape(alt)}' style='{style}' src='data:image/png;base64,{encoded}'>"


def png(pixels: Pixels) -> bytes:
    """A PNG file (8 bits, RGB; w3.org/TR/png-3) of pixels [rows, columns, 3]."""
    rows, columns, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = np.concatenate((np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)), axis=1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes())), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _colours(ratios: float | NDArray[np.float64]) -> Pixels:
    """Green up to the floor, yellow at the limit, red from ten times the limit on; [..., 3]."""
    with np.errstate(divide="ignore"):
        log = np.clip(np.log10(np.maximum(ratios, 1e-9)), 0, 2)[..., None]  # 0: floor, 1: limit, 2: far beyond
    green, yellow, red = (np.array(colour, np.float64) for colour in (_GREEN, _YELLOW, _RED))
    mixed = np.where(log < 1, green + (yellow - green) * log, yellow + (red - yellow) * (log - 1))
    colours: Pixels = mixed.astype(np.uint8)
    return colours
