"""Ctrl-C at a chosen line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

at_some_lines = pytest.mark.parametrize(
    "every", [pytest.param(7, id="some lines"), pytest.param(1, marks=pytest.mark.nightly, id="all lines")]
)
"""A test of Ctrl-C at every seventh line; `make nightly` tries them all. It has the parameter `every`."""


def interrupted_at(line: int, call: Any, since: Any = None) -> bool:
    """Call with a KeyboardInterrupt at that many lines of the package, counted from the first call of the function
    `since` on; False when there are fewer."""
    left, begun = [line], since is None

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal begun
        if f"{os.sep}dps{os.sep}" not in frame.f_code.co_filename:
            return None
        begun = begun or frame.f_code is since.__code__
        left[0] -= begun and event == "line"
        if left[0] == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    def interrupted() -> Iterator[bool]:
        """A generator, for Python keeps what is being handled for each generator: an interrupt at the end of an
        `except` block leaves its exception behind, which would be the context of all later errors."""
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        yield left[0] <= 0  # also where a `__del__` has swallowed it

    return next(interrupted())
