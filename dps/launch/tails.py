"""The last error that each task has printed: the end of its newest traceback, in one line."""

from __future__ import annotations

import os
import re

BEGIN = "Traceback (most recent call last):"
PLACE = re.compile(r'  File "(.+)", line (\d+)')
LONGEST = 200


class Tails:
    """Reads the output of tasks. `found`: such as "ValueError: no data (train.py, line 7)", by the task's name."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._open: dict[str, str] = {}
        """Tasks in the middle of a traceback, and the last place that it has named."""

    def note(self, name: str, text: str) -> None:
        """Take a line of a task's output."""
        if text == BEGIN:
            self._open[name] = ""
        elif name in self._open:
            if place := PLACE.match(text):
                self._open[name] = f" ({os.path.basename(place[1])}, line {place[2]})"
            elif text and not text.startswith(" "):
                self.found[name] = text[:LONGEST] + self._open.pop(name)
