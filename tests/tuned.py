"""Other sizes and times for the real runtime of a test's process."""

from __future__ import annotations

from typing import Any

import pytest

from dps.transport.current import runtime


def tune(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """What is made from now on decides by these, named as in `Tuning.where`: `tune(patch, store__large_pieces=0)`."""
    patch.setattr(runtime(), "tuning", runtime().tuning.where(**changes))
