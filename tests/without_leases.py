"""What holds prevent: a ps that writes to memory which is being read."""

from __future__ import annotations

from typing import Any

import pytest

from dps.ps.store.hold import Hold


def drop_leases(patch: pytest.MonkeyPatch) -> None:
    """From now on a hold keeps no buffer from being written."""
    make: Any = Hold.__init__

    def hold_nothing(self: Hold, *about: Any) -> None:
        *rest, _, lock = about
        make(self, *rest, (), lock)

    patch.setattr(Hold, "__init__", hold_nothing)
