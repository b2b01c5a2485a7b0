"""The last error that each task has printed: the end of its newest traceback, in one line."""

from __future__ import annotations

import os
import re

BEGIN = "Traceback (most recent call last):"
PLACE = re.compile(r'  File "(.+)", line (\d+)')
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
"""Errors that have no traceback if they are those of the program's file."""
REFUSED = re.compile(r"dps: (?!stopping after)(.+)|(\S+: error: .+)")
"""What a program prints that ends with exit code 2: an error of dps, or of argparse."""
LONGEST = 200


class Tails:
    """Reads the output of tasks. `found`: such as "ValueError: no data (train.py, line 7)", by the task's name;
    `refused`: what was wrong with arguments or settings."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._open: dict[str, str] = {}
        """Tasks in the middle of a traceback, and the last place that it has named."""
        self._place: dict[str, str] = {}
        """Tasks in the middle of what may be a syntax error, and its place."""

    def note(self, name: str, text: str) -> None:
        """Take a line of a task's output."""
        place = PLACE.match(text)
        where = f" ({os.path.basename(place[1])}, line {place[2]})" if place else ""
        if text == BEGIN:
            self._open[name] = ""
        elif name in self._open:
            if place:
                self._open[name] = where
            elif text and not text.startswith(" "):
                self.found[name] = text[:LONGEST] + self._open.pop(name)
        elif place:
            self._place[name] = where
        elif name in self._place and not text.startswith(" "):
            if text.startswith(SYNTAX):
                self.found[name] = text[:LONGEST] + self._place[name]
            del self._place[name]
        elif wrong := REFUSED.fullmatch(text):
            self.refused[name] = (wrong[1] or wrong[2])[:LONGEST]
