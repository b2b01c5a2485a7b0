"""A loop that stops by itself: alone, and in step with another worker."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.processes import EXAMPLES, Terminals

LOOP = str(EXAMPLES / "custom_loop.py")


def closing(text: str) -> list[tuple[int, float, float]]:
    """Of each worker: the epoch in which it stopped, its error, and the part of it that is noise."""
    found = re.findall(r"stopped in epoch (\d+): error ([\d.]+), of which noise ([\d.]+)", text)
    return [(int(epoch), float(error), float(noise)) for epoch, error, noise in found]


def test_alone_it_stops_by_itself_near_the_noise(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", LOOP)
        codes, said = terminals.ended()
    assert codes == {"alone": 0}, said
    ((epoch, error, noise),) = closing(said["alone"])
    assert epoch < 20  # the most that it may take
    assert noise < error < 1.1 * noise  # 51 numbers fitted to 3,000 examples cost about 51/3000 more than the noise


def test_two_synchronous_workers_have_the_same_values_and_stop_in_the_same_epoch(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("all", "-m", "dps.cli", "launch", "--workers", "2", "--update", "sync", LOOP)
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    first, second = closing(said["all"])
    assert first == second
    assert first[1] < 1.1 * first[2]
