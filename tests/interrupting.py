"""Ctrl-C at a chosen line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any


def interrupted_at(line: int, call: Any) -> bool:
    """Call with a KeyboardInterrupt at that many lines of the package; False when there are fewer."""
    left = [line]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if f"{os.sep}dps{os.sep}" not in frame.f_code.co_filename:
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    def interrupted() -> Iterator[bool]:
        """A generator, for Python keeps what is being handled for each generator: an interrupt at the end of an
        `except` block leaves its exception behind, which would be the context of all later errors."""
        before, reached = sys.gettrace(), False
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            reached = True
        finally:
            sys.settrace(before)
        yield reached

    return next(interrupted())
