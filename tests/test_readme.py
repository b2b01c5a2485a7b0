"""README.md is short, has its parts in the order in which a newcomer asks for them, and claims what was measured."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

import dps

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXISTS = (ROOT / "docs" / "what-exists.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


def test_it_has_at_most_a_thousand_words() -> None:
    assert len(README.split()) <= 1000  # as `wc -w README.md` counts, code included


def test_its_parts_come_in_the_order_in_which_they_are_asked_for() -> None:
    parts = [
        r"# dps\n\n[^\n]+\.\n\n!\[",  # one sentence, then a picture of a result
        r"^pip install \.$",
        r"^```python$",
        r"^step 100: ",
        r"^## What it is for, and what it is not for$",
        r"^\| \| dps \| PyTorch DDP \| torch RPC \| Ray \| TensorFlow's ps \|$",
        r"^make demo$\nmake test\b",
        r"^## A short tour$",
        r"^## Reading on$",
    ]
    places = [re.search(part, README, re.M) for part in parts]
    assert all(places), [part for part, place in zip(parts, places, strict=True) if place is None]
    starts = [place.start() for place in places if place is not None]
    assert starts == sorted(starts) and starts[0] == 0


def test_the_first_program_has_about_twenty_lines() -> None:
    (program,) = re.findall(r"^```python\n(import numpy.*?)^```$", README, re.M | re.S)
    lines = [line for line in program.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20


def test_each_paragraph_of_the_tour_names_its_subject_and_most_lead_to_a_page() -> None:
    tour = README.split("## A short tour\n")[1].split("\n## ")[0]
    parts = [part for part in tour.split("\n\n") if part.startswith("**")]
    assert len(parts) >= 10 and sum("](" in part for part in parts) >= 9


def test_it_says_from_where_it_is_installed_as_long_as_nothing_is_released() -> None:
    (before,) = re.findall(r"^([^\n]+)\n\n```\npip install", README, re.M)
    assert "Nothing is released yet" in before and "checkout" in before
    assert not re.findall(r"pip install [^.\n`]*\bdps\b", README)


SYNC = [("dps", ""), ("torch", "gloo"), ("torch", ""), ("ray", "")]
SOCKETS = [("dps", "socket"), ("torch", "tcp"), ("torch", "tcp malloc"), ("tf", "")]


def test_its_milliseconds_are_the_medians_of_the_raw_output() -> None:
    lines = (RESULTS / "2026-11-23-2-shared-cores-peers.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines[1:]]

    def medians(work: str, peers: list[tuple[str, str]]) -> list[int]:
        found = [
            [
                r["results"][work]["median_s"]
                for r in rounds
                if (r["system"], r["variant"]) == peer and work in r["results"]
            ]
            for peer in peers
        ]
        return [round(1000 * statistics.median(seconds)) for seconds in found]

    (sync,) = re.findall(r"^\| synchronous step, 102 MB, 2 workers, one host (.*)$", README, re.M)
    (sockets,) = re.findall(r"^\| step of one worker, 102 MB, over local sockets (.*)$", README, re.M)
    assert [int(n) for n in re.findall(r"\d+", sync)] == medians("w5_resnet", SYNC)
    assert [int(n) for n in re.findall(r"\d+", sockets)] == medians("w3_sgd", SOCKETS)


def test_its_times_of_a_small_step_are_those_of_the_raw_output() -> None:
    lines = (RESULTS / "2026-11-23-2-shared-cores-goals.txt").read_text().splitlines()
    for computing, wanted in (("0.7", "1.6 to 2.6"), ("20", "1.1 to 1.3")):
        loops = [line for line in lines if line.startswith("loop") and f"local training, {computing} ms a step" in line]
        shares = [float(line.split(" local training")[0].split()[-1]) for line in loops[:4]]  # then come two workers
        times = sorted(1 / share for share in shares)
        assert f"{times[0]:.1f} to {times[-1]:.1f}" == wanted
        assert wanted in README


def test_the_word_planned_and_the_table_of_what_exists_are_in_the_documents() -> None:
    assert "| exists" not in README and "what-exists.md" in README
    planned = EXISTS.split("| planned |")[1]
    assert "monitor" not in planned and "dps monitor" in EXISTS.split("| planned |")[0]


@pytest.mark.parametrize("value", ["standby", "log"])
def test_what_is_planned_is_refused_today(value: str) -> None:
    assert f'durability="{value}"' in EXISTS.split("| planned |")[1]
    with dps.Server.create_local_server() as server, pytest.raises(dps.ConfigError, match="not there yet"):
        dps.Session(server, durability=value)


def test_there_are_the_adapters_that_the_table_names() -> None:
    for name in ("torch", "jax"):
        assert f"`dps.{name}`" in EXISTS.split("| planned |")[0] and name in dir(dps)


def test_the_pickled_exception_and_what_the_simulator_does_not_model_are_named() -> None:
    assert re.search(
        r"Nothing on the wire or on disk is pickled\. The one exception: .*notebook.*cloudpickle", README, re.S
    )
    (simulator,) = re.findall(r"\*\*The simulator\*\*.*?\n\n", README, re.S)
    assert "does not model" in simulator


def test_the_page_on_performance_opens_with_advice() -> None:
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    first, second, *_ = re.findall(r"^## (.+)$", performance, re.M)
    assert first == "Which form for which model" and second == "What a training step costs"
    advice = performance.split("\n## ")[1]
    names = "pull", "step", "view", "step_in_place", "gradients", "prefetch", "push_async"
    assert all(f"`session.{name}`" in advice for name in names)
