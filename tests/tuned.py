"""Other sizes and times for the real runtime of a test's process."""

from __future__ import annotations

from typing import Any

import pytest

from dps.transport.current import runtime

RESENT_SOON = {"nodes__first_resend_s": 0.01, "nodes__last_resend_s": 0.02}
"""For `tune`: a message that Ctrl-C has kept from leaving is sent again at once, so that a test can try every line."""


def tune(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """What is made from now on decides by these, named as in `Tuning.where`: `tune(patch, store__large_pieces=0)`."""
    patch.setattr(runtime(), "tuning", runtime().tuning.where(**changes))
