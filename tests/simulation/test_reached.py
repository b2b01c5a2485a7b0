"""What the simulator's seeds reach of cargo, intake, modes and store, and that the list of the rest is true."""

from __future__ import annotations

import pytest

from tests.simulation.reached import ROOMS, ROOT, listed, reached, share

SEEDS = 16
LEAST = 0.97


def test_each_listed_line_is_there_and_has_a_reason() -> None:
    for (name, text), reason in listed().items():
        assert reason, f"{name}: {text}"
        assert text in [line.strip() for line in (ROOT / name).read_text().splitlines()], f"{name} has no line {text!r}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_seeds_reach_nearly_all_lines() -> None:
    found, known = reached(SEEDS), listed()
    for room in ROOMS:
        missed = [f"{f.name}:{n} {t}" for f in found if f.room == room for n, t in f.missed if (f.name, t) not in known]
        assert share(found, room, known) >= LEAST, "\n".join(missed)
