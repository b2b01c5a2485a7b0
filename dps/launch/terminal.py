"""Makes text from tasks harmless for a terminal: of its escape sequences only colours and the like (SGR) are left."""

from __future__ import annotations

import re

RESET = "\x1b[0m"
_CONTROLS = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, clearing, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings: titles
    r"|\x1b[ -/]*[0-~]"  # shorter sequences: reset, character sets
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of any other sequence, and single controls
)
"""Whatever is not a sequence of a known form loses its control characters, so nothing but colours can remain. Each
alternative ends at the next control character: text of any length is read once."""


def coloured(text: str) -> str:
    """The text with colours as its only escape sequences. They end with the text."""
    if text.isprintable():
        return text
    kept = _CONTROLS.sub(lambda found: found["colour"] or "", text)
    return kept + RESET if "\x1b" in kept and not kept.endswith(RESET) else kept


def plain(text: str) -> str:
    """The text without any escape sequence."""
    return text if text.isprintable() else _CONTROLS.sub("", text)
