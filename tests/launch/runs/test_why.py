"""The sentence that says why training is slow or stands still."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dps.launch.runs.why import FACTOR, Recent, Worked, expected_gain, sentence, worker_times

SYNC, ASYNC, BOUNDED, LOCAL = (
    {"mode": "sync", "replicas_to_aggregate": None}, {"mode": "async"}, {"mode": "bounded", "staleness": 3},
    {"mode": "local", "steps": 4},
)  # fmt: skip


def worker(read: float, computed: float, moved: float, waited: float = 0.0, pieces: int = 20) -> dict[str, Any]:
    """A worker whose last steps, each a piece, were made of these seconds."""
    return {"recent": [[1, read, computed, moved, waited]] * pieces}


def four(slow: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {"worker:0": usual, "worker:1": usual, "worker:2": slow, "worker:3": usual}


def test_who_computes_slowly_is_named_with_what_would_be_gained() -> None:
    found = four(worker(0.01, 3.9, 0.11), worker(0.01, 0.4, 0.09, waited=3.52))
    text = "worker 2 is 8.0 times slower than the median, 97 % of it computing; without it 8.0 times more steps/s"
    assert sentence(found, SYNC) == text


@pytest.mark.parametrize(
    ("slow", "word"),
    [
        ((0.4, 0.1, 0.1), "67 % of it reading data"), ((0.1, 0.4, 0.1), "67 % of it computing"),
        ((0.1, 0.1, 0.4), "67 % of it moving values"),
    ],
)  # fmt: skip
def test_each_cause_has_its_word(slow: tuple[float, float, float], word: str) -> None:
    found = four(worker(*slow), worker(0.1, 0.1, 0.1, waited=0.3))
    assert sentence(found, SYNC) == (
        f"worker 2 is 2.0 times slower than the median, {word}; without it 2.0 times more steps/s"
    )
    assert word in sentence(found, BOUNDED) and "without it 1.5 times more steps/s" in sentence(found, BOUNDED)
    assert word in sentence(found, LOCAL) and "without it 2.0 times more steps/s" in sentence(found, LOCAL)


def test_the_cause_is_what_takes_more_than_in_others_and_not_what_takes_most() -> None:
    found = four(worker(0.9, 1.0, 0.0), worker(0.1, 1.0, 0.0, waited=0.8))
    assert "47 % of it reading data" in sentence(found, SYNC)


def test_in_async_nothing_is_gained() -> None:
    found = four(worker(0.0, 8.0, 0.0), worker(0.0, 1.0, 0.0))
    assert sentence(found, ASYNC) == (
        "worker 2 is 8.0 times slower than the median, 100 % of it computing; it gives 4 % of the steps; taking it "
        "away gains nothing"
    )


def test_with_backup_workers_nothing_is_gained_by_taking_the_slow_one_away() -> None:
    found = four(worker(0.0, 4.0, 0.0), worker(0.0, 1.0, 0.0))
    assert sentence(found, SYNC | {"replicas_to_aggregate": 3}).endswith("; taking it away gains nothing")
    assert sentence(found, SYNC | {"replicas_to_aggregate": 4}).endswith("; without it 4.0 times more steps/s")


def test_of_two_slow_workers_the_other_one_still_holds_the_steps_up() -> None:
    found = four(worker(0.0, 4.0, 0.0), worker(0.0, 1.0, 0.0)) | {"worker:4": worker(0.0, 3.0, 0.0)}
    assert sentence(found, SYNC).endswith("without it 1.3 times more steps/s")


def test_even_workers_and_a_worker_alone_give_no_sentence() -> None:
    even = worker(0.1, 0.1, 0.1)
    assert sentence(four(even, even), SYNC) == sentence({"worker:0": worker(0.0, 9.0, 0.0)}, SYNC) == ""
    assert sentence({}, {}) == ""
    below = worker(0.1, 0.1 + 0.3 * (FACTOR - 1.01), 0.1)
    assert sentence(four(below, even), SYNC) == ""


def test_waiting_for_others_makes_nobody_slow() -> None:
    assert sentence(four(worker(0.1, 0.1, 0.1, waited=9.0), worker(0.1, 0.1, 0.1)), SYNC) == ""


@pytest.mark.parametrize("pieces", [[[1, 0, 0.3, 0, 0]] * 9, [[5, 0, 0.9, 0, 0]] * 2, [[100, 0, 60.0, 0, 0]], []])
def test_of_fewer_than_ten_steps_or_two_seconds_nothing_is_said(pieces: list[list[float]]) -> None:
    assert sentence(four({"recent": pieces}, worker(0.0, 0.01, 0.0, pieces=400)), SYNC) == ""


def test_in_local_mode_the_steps_of_a_round_count() -> None:
    rounds, usual = worker(0.0, 8.0, 0.0, pieces=3), worker(0.0, 2.0, 0.0, waited=6.0, pieces=3)
    assert "without it 4.0 times more steps/s" in sentence(four(rounds, usual), LOCAL)
    assert sentence(four(rounds, usual), LOCAL | {"steps": 3}) == ""


def test_of_many_pieces_the_last_ones_count() -> None:
    paced = {"recent": [[1, 0.0, 1.0, 0.0, 0.0]] * 12 + [[1, 0.0, 4.0, 0.0, 0.0]] * 10}
    assert "4.0 times slower" in sentence(four(paced, worker(0.0, 1.0, 0.0)), SYNC)


def test_one_long_pause_makes_no_slow_worker() -> None:
    paused = {"recent": [[1, 0.0, 0.2, 0.0, 0.0]] * 9 + [[1, 0.0, 5.0, 0.0, 0.0]] + [[1, 0.0, 0.2, 0.0, 0.0]] * 2}
    assert sentence(four(paused, worker(0.0, 0.2, 0.0)), SYNC) == ""


def test_a_run_that_stands_still_says_who_waits_for_whom_since_when_and_until_when() -> None:
    waits = {"who": ["worker:0"], "for": ["worker:2"], "since_s": 12.3, "until_s": 47.6}
    assert sentence({}, SYNC, waits) == "worker 0 waits for worker 2, for 12 s so far, and gives up in 48 s"
    waits |= {"who": ["worker:0", "worker:1", "worker:3"], "until_s": None}
    assert sentence({}, SYNC, waits) == (
        "worker 0, worker 1 and worker 3 wait for worker 2, for 12 s so far, without a deadline"
    )
    waits |= {"until_s": 3.2}
    assert sentence({}, SYNC, waits).endswith("and the first of them gives up in 3 s")
    assert sentence({}, SYNC, waits | {"since_s": 1.9}) == ""
    away = {"ps:1": [12.0, 38.0]}
    assert sentence({}, SYNC, None, away) == "the chief waits for ps 1, for 12 s so far, and gives up in 38 s"


def test_workers_that_have_done_nothing_but_wait_are_no_measure() -> None:
    assert sentence(four(worker(0.0, 1.0, 0.0), worker(0.0, 0.0, 0.0, waited=1.0)), SYNC) == ""


def test_to_wait_for_the_usual_step_of_a_slow_worker_is_no_standstill() -> None:
    found = four(worker(0.0, 8.0, 0.0), worker(0.0, 1.0, 0.0, waited=7.0))
    waits = {"who": ["worker:0", "worker:1"], "for": ["worker:2"], "since_s": 6.0, "until_s": 54.0}
    assert sentence(found, SYNC, waits).startswith("worker 2 is 8.0 times slower")
    assert sentence(found, SYNC, waits | {"since_s": 25.0}).startswith(
        "worker 0 and worker 1 wait for worker 2, for 25 s"
    )


def test_the_times_of_workers_are_found_where_the_step_ps_reports_them() -> None:
    ps = {
        "0": {"sessions": {"worker:10": {"times": {"steps": 1}}, "worker:2": {"times": {"steps": 2}}, "client:0": {}}},
        "1": {"sessions": {"worker:2": {"pushes": 3}}}, "2": {"state": "no answer"},
    }  # fmt: skip
    assert list(worker_times(ps).items()) == [("worker:2", {"steps": 2}), ("worker:10", {"steps": 1})]


SECONDS = st.floats(0, 1e6)
PIECE = st.tuples(st.integers(0, 100), SECONDS, SECONDS, SECONDS, SECONDS).map(list)
UPDATE = st.sampled_from([SYNC, ASYNC, BOUNDED, LOCAL, SYNC | {"replicas_to_aggregate": 2}, {}])


@given(st.dictionaries(st.integers(0, 9).map("worker:{}".format), st.lists(PIECE, max_size=14)), UPDATE)
@settings(max_examples=100)
def test_whatever_the_numbers_there_is_one_line_or_none(pieces: dict[str, Any], update: dict[str, Any]) -> None:
    text = sentence({name: {"recent": each} for name, each in pieces.items()}, update)
    assert "\n" not in text and "nan" not in text and "inf" not in text
    if text:
        assert text.startswith("worker ") and " times slower than the median, " in text
        promises = "more steps/s" in text
        assert promises != text.endswith("gains nothing") and not (promises and update in (ASYNC, {}))


OWN = st.floats(0.001, 10.0)


@given(st.lists(OWN, min_size=2, max_size=8), st.sampled_from([SYNC, LOCAL, BOUNDED]), st.integers(1, 8))
@settings(max_examples=100)
def test_the_gain_is_that_of_a_run_of_even_steps(own: list[float], update: dict[str, Any], wanted: int) -> None:
    """Against the steps that workers of constant speed make, with the slowest and without it."""
    own.sort()
    if update is SYNC:
        update = SYNC | {"replicas_to_aggregate": wanted if wanted <= len(own) else None}

    def rate(times: list[float]) -> float:
        if update["mode"] == "bounded":
            return len(times) / times[-1]
        return 1 / times[min(update.get("replicas_to_aggregate") or len(times), len(times)) - 1]

    workers = [Worked(20, 0.0, each, 0.0, 0.0) for each in own]
    gain = expected_gain(workers[-1], workers[:-1], update)
    assert abs(gain - rate(own[:-1]) / rate(own)) < 1e-6 * gain


def test_halves_of_the_last_steps_take_about_as_long() -> None:
    found = Recent.of([[1, 0.0, 1.0, 0.0, 0.0]] * 6 + [[2, 0.0, 1.5, 0.0, 0.0]] * 4)
    assert found is not None and [half.steps for half in found.halves] == [4, 6]
