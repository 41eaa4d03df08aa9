"""Names of results for people: by role, and layers as ranges."""

from collections.abc import Sequence

from karat.check.model.graph import Graph

_SHOWN = 8


def shortened(names: Sequence[str], graph: Graph) -> str:
    """Names by role, layers as ranges: self_attn.q_proj in layers 0-23."""
    roles: dict[str, list[int]] = {}
    for name in names:
        node = graph.nodes[name]
        roles.setdefault(node.role, []).append(-1 if node.layer is None else node.layer)
    parts = []
    for role, layers in list(roles.items())[:_SHOWN]:
        parts.append(role if layers == [-1] else f"{role} in {layers_text(layers)}")
    more = f", … {len(roles) - _SHOWN} more" if len(roles) > _SHOWN else ""
    return ", ".join(parts) + more


def layers_text(layers: Sequence[int]) -> str:
    """layer 3; layers 0-2, 5."""
    return f"layer{'s' * (len(set(layers)) > 1)} {ranges(layers)}"


def ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as 0-2, 5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
