"""Parts that the pictures share: colours and text."""

from html import escape

INK, GREY, SOFT_INK = "#1b1f24", "#d5d9de", "#57606a"
COLOURS = ("#0b6bcb", "#c4420f", "#1a7f45", "#7a3fb4", "#a8730a", "#0e7c86", "#b3246b", "#4b5563")


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK, size: int = 13) -> str:
    """A line of text whose `anchor` (start, middle, end) is at x."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}">{escape(words)}</text>'


def picture(width: int, height: int, parts: list[str]) -> str:
    """The SVG on a white ground."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join(['<rect width="100%" height="100%" fill="white"/>', *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">\n{body}\n</svg>\n'
