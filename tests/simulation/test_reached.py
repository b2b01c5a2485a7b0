"""What the simulator's seeds reach of cargo, intake, modes and store, and that the list of the rest is true."""

from __future__ import annotations

import pytest

from tests.simulation.reached import ROOMS, ROOT, entries, functions, listed, reached, share

SEEDS = 16
LEAST = 0.97


def test_each_listed_line_is_in_its_function_as_often_as_it_is_listed_and_has_a_reason() -> None:
    for line, reason in entries():
        assert reason, line
    for (name, function, text), count in listed().items():
        owners, source = functions(ROOT / name), (ROOT / name).read_text().splitlines()
        there = sum(owner == function and source[number - 1].strip() == text for number, owner in owners.items())
        assert there >= count, f"{name}::{function} has {there} lines {text!r}, {count} are listed"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_seeds_reach_nearly_all_lines() -> None:
    found, known = reached(SEEDS), listed()
    for room in ROOMS:
        missed = [f"{f.name}:{n} {t}" for f in found if f.room == room for n, _, t in f.not_in(known)]
        assert share(found, room, known) >= LEAST, "\n".join(missed)
