"""The protocols that are served."""

from karat.server.anthropic.protocol import MESSAGE
from karat.server.openai.protocols import CHATS, RESPONSE, TEXTS
from karat.server.protocol import ErrorForm

PROTOCOLS = (CHATS, TEXTS, MESSAGE, RESPONSE)
COUNTINGS = tuple(protocol.counting for protocol in PROTOCOLS if protocol.counting is not None)
_USUAL = ErrorForm()


def errors_at(path: str) -> ErrorForm:
    """The form of errors at a path: that of the protocol whose route it is, or is below; OpenAI's at any other."""
    for protocol in PROTOCOLS:
        if path == protocol.route or path.startswith(f"{protocol.route}/"):
            return protocol.errors
    return _USUAL
