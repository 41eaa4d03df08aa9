"""Writes the table of fields into docs/serving.md, from karat.server.fields.

Use: python -m tools.field_table
"""

import json
from pathlib import Path

from karat.server.fields import CHAT, COUNT, INPUT_TOKENS, MESSAGES, RESPONSES, TABLE, TEXT, Field

PAGE = Path(__file__).resolve().parent.parent / "docs" / "serving.md"
BEGIN, END = "<!-- made by python -m tools.field_table -->\n", "<!-- end of what is made -->\n"
_ROUTES = {
    CHAT: "chat",
    TEXT: "text",
    MESSAGES: "messages",
    COUNT: "count",
    RESPONSES: "responses",
    INPUT_TOKENS: "input_tokens",
}
_TITLES = {"honoured": "Honoured", "without effect": "Without effect on the answer", "refused": "Refused"}


def table() -> str:
    """The three classes, each as a table."""
    parts = []
    for kind, title in _TITLES.items():
        heading = "instead" if kind == "refused" else "meaning"
        rows = [field for field in TABLE if field.kind == kind and _ROUTES.keys() & set(field.routes)]
        lines = [f"### {title}\n", f"| field | of | {heading} |", "|---|---|---|"]
        lines += [f"| `{field.name}` | {_routes(field)} | {_text(field)} |" for field in rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def with_table(page: str) -> str:
    """`page` with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _routes(field: Field) -> str:
    return ", ".join(name for route, name in _ROUTES.items() if route in field.routes)


def _text(field: Field) -> str:
    text = field.text.replace("|", "\\|")
    if field.off:
        text += f" (taken: {', '.join(f'`{json.dumps(off)}`' for off in field.off)})"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
