"""What a ps answers when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dps.errors import Aborted
from dps.ps.server import PsActor


def test_what_comes_to_a_ps_that_has_ended_sends_the_session_to_the_chief_and_raises_nothing_in_its_loop() -> None:
    node: Any = SimpleNamespace(name="ps:0")
    actor = PsActor()
    actor.node = node
    assert isinstance(actor.too_late(), Aborted)
