"""What holds prevent: a ps that writes to memory which is being read."""

from __future__ import annotations

from typing import Any

import pytest

from dps.ps.store.hold import Hold


def drop_leases(patch: pytest.MonkeyPatch) -> None:
    """From now on a hold keeps no buffer from being written."""
    make: Any = Hold.__init__

    def hold_nothing(
        self: Hold, counter: int, step: int, arrays: Any, memories: Any, buffers: Any = ()
    ) -> None:  # fmt: skip
        make(self, counter, step, arrays, memories)

    patch.setattr(Hold, "__init__", hold_nothing)
