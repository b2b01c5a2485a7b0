"""Slow workers among real processes: who is named, with which word, how soon, and what it is like without them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dps
from dps.errors import DpsError
from dps.launch.runs.why import LEAST_S, LEAST_STEPS
from dps.transport.current import runtime
from tests.launch.slowed import Order, Watch, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
WORDS = {"data": "reading data", "computing": "computing", "link": "moving values"}
KINDS = ("read_s", "computed_s", "moved_s", "waited_s")


@contextlib.contextmanager
def training(update: str, order: Order, folder: Path) -> Iterator[Watch]:
    """Four workers that train."""
    with dps.LocalCluster(ps=1, workers=4) as local:
        told = order._replace(leaves=str(folder / "leaves"), ends=str(folder / "ends"))
        run = local.run(train, update, told._asdict())
        try:
            yield Watch(local.target)
        finally:
            (folder / "ends").touch()
            run.wait()


def asked(watch: Watch) -> dict[str, Any]:
    """What status says; {} before the run has begun."""
    with contextlib.suppress(DpsError):
        return watch.ask()
    return {}


def named(watch: Watch, timeout_s: float = 60.0) -> dict[str, Any]:
    """The first answer with a sentence."""
    clock = runtime()
    end = clock.now() + timeout_s
    while clock.now() < end:
        now = asked(watch)
        if now.get("why"):
            return now
        clock.sleep(0.05)
    raise AssertionError("nobody was named")


@pytest.mark.parametrize(
    ("update", "slow"),
    [("sync", "data"), ("async", "link"), *(
        pytest.param(*of, marks=pytest.mark.nightly)
        for of in (("sync", "computing"), ("sync", "link"), ("bounded:3", "computing"), ("local:3", "computing"))
    )],
)  # fmt: skip
def test_each_cause_is_named_within_ten_steps_or_two_seconds(update: str, slow: str, tmp_path: Path) -> None:
    with training(update, Order(slow), tmp_path) as watch:
        now = named(watch)
        text, own = now["why"], now["workers"]["worker:2"]
        took_s = sum(own[kind] for kind in KINDS)
        # Counted from the first step, in which ps and programs load. Of the rest the half is for this test's own looks.
        counted = own["steps"] * (3 if update == "local:3" else 1)
        step_s = took_s / own["steps"]
        assert counted <= 2 * LEAST_STEPS or took_s <= LEAST_S + 2 * step_s + 1.5, own
        assert text.startswith("worker 2 is ") and f" % of it {WORDS[slow]}; " in text
        assert text.endswith("gains nothing") == (update == "async")
        if update == "async":
            return
        runtime().sleep(2.0)
        promised = float(named(watch)["why"].partition("without it ")[2].partition(" ")[0])
        before = watch.rate(4.0)
        (tmp_path / "leaves").touch()
        runtime().sleep(1.5)
        after = watch.rate(4.0)
        assert 0.8 <= promised / (after / before) <= 1.2, (promised, after / before)
        assert watch.ask()["why"] == ""


@pytest.mark.parametrize("update", ["sync", pytest.param("async", marks=pytest.mark.nightly)])
def test_of_four_even_workers_nobody_is_named_also_on_busy_cores(update: str, tmp_path: Path) -> None:
    """The workers compute on processors that are fewer than they."""
    said, looks, clock = [], 0, runtime()
    with training(update, Order(spins=True), tmp_path) as watch:
        end = clock.now() + 15.0
        while clock.now() < end:
            now = asked(watch)
            looks += bool(now.get("workers"))
            said += [now["why"]] if now.get("why") else []
            clock.sleep(0.25)
    assert said == [] and looks > 10


def test_a_run_that_stands_still_says_who_waits_for_whom_and_until_when(tmp_path: Path) -> None:
    with training("sync", Order("computing", factor=400.0), tmp_path) as watch:
        now = named(watch)
    assert now["waits"]["for"] == ["worker:2"] and now["waits"]["who"] == ["worker:0", "worker:1", "worker:3"]
    assert now["waits"]["since_s"] >= 2.0 and 20.0 < now["waits"]["until_s"] <= 28.0
    assert now["why"].startswith("worker 0, worker 1 and worker 3 wait for worker 2, for 2 s so far, and the first")
