"""What a session announces when it has joined again: how many steps are lost, and whether that is certain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dps.client.waiting import Loss, Waiter


@pytest.mark.parametrize(
    ("epoch", "restored", "reached", "certain", "told", "says"),
    [
        (4, 7, 12, True, (True, Loss(5, True)), "5 steps lost"),
        (4, 7, 30, True, (True, Loss(23, True)), "23 steps lost"),
        (4, 11, 0, False, (True, Loss(1, False)), "at least 1 step lost"),
        (3, 7, 12, True, (True, Loss(5, False)), "at least 5 steps lost"),  # a number that was used twice hides no loss
        (3, 12, 12, True, (False, Loss(0, False)), "at least 0 steps lost"),  # it was given up, and came back
    ],
)
def test_lost_steps_are_announced_whatever_the_number_of_the_epoch(
    epoch: int, restored: int, reached: int, certain: bool, told: tuple[bool, Loss], says: str
) -> None:
    heard: list[tuple[bool, Loss]] = []
    runtime = SimpleNamespace(record=lambda *_, **__: None)
    connection: Any = SimpleNamespace(
        steps=SimpleNamespace(step=12), membership=SimpleNamespace(epoch=3), home=SimpleNamespace(runtime=runtime)
    )

    def join(deadline: float) -> None:
        connection.membership = SimpleNamespace(epoch=epoch, restored=restored, reached=reached, certain=certain)
        connection.steps = SimpleNamespace(step=restored)

    connection.joining = SimpleNamespace(join=join)
    Waiter(connection, 60.0, lambda *news: heard.append(news)).recover(0.0)
    assert heard == [told] and str(heard[0][1]) == says
