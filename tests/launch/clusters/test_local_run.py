"""A run of a local cluster, seen by who waits for it: without a cluster, told what its workers do."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

import pytest

from dps.calls.failures import Failure, failure_of
from dps.errors import DeadlineExceeded, DpsError, OutOfDescriptors
from dps.launch.clusters import progress
from dps.launch.clusters.processes import ProcessTasks
from dps.launch.clusters.run import LocalRun
from dps.launch.clusters.worker import write_value
from dps.launch.programs import leaving
from dps.process.functions import show_sources, sources


class Told:
    """Workers that note what they are asked; `obedient` ones end when they are."""

    target = "127.0.0.1:2220"

    def __init__(self, obedient: bool = True) -> None:
        self.run: LocalRun
        self.said: list[str] = []
        self.asked: list[int] = []
        self.killed: list[int] = []
        self.obedient = obedient

    def ask_to_stop(self, task: int) -> None:
        self.asked.append(task)
        if self.obedient:
            self.run.ended(task, "drained")

    def end_worker(self, task: int) -> None:
        self.killed.append(task)
        self.run.ended(task, None, Failure("SIGKILL"))

    def say(self, text: str) -> None:
        self.said.append(text)


def run_of(count: int, obedient: bool = True) -> tuple[LocalRun, Told]:
    workers = Told(obedient)
    workers.run = LocalRun("train", count, workers)
    return workers.run, workers


def row(step: int, loss: float | None, worker: int = 0) -> dict[str, Any]:
    return {"worker": f"worker:{worker}", "step": step, "loss": loss, "accepted": True, "staleness": 0, "seconds": 0.1}


def raised(text: str) -> Failure:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        return failure_of(error)


def otherwise() -> Failure:
    try:
        return Failure({}["missing"])
    except KeyError as error:
        return failure_of(error)


def test_workers_that_fail_the_same_way_are_told_with_one_traceback() -> None:
    run, _ = run_of(4)
    for task in (2, 0, 3):
        run.ended(task, None, raised(f"batch {task} has no labels"))
    run.ended(1, None, otherwise())
    with pytest.raises(DpsError) as told:
        run.wait()
    text = str(told.value)
    assert text.startswith("worker:2 failed: RuntimeError: batch 2 has no labels\nTraceback")
    assert text.count("Traceback") == 1 and "raise RuntimeError(text)" in text  # with its source line
    assert text.endswith("\nworker:0, worker:3 failed the same way\nworker:1 failed: KeyError: 'missing'")
    assert run.failed == text


def test_a_failure_is_told_in_one_line_once_others_go_on() -> None:
    run, workers = run_of(3)
    run.ended(1, None, raised("no data"))
    run.ended(0, None, raised("no data"))
    assert not workers.said  # all may be about to fail this way
    run.pushed(row(12, 0.5, worker=2))
    run.pushed(row(13, 0.5, worker=2))
    (line,) = workers.said
    assert line.startswith("worker:1 failed: RuntimeError: no data (the others go on") and "run.stop()" in line
    assert "\n" not in line and not run.done() and run.failed == ""


def test_who_waits_is_told_of_a_failure_also_where_nobody_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.launch.clusters.run.FAIL_S", 0.0)
    run, workers = run_of(2)
    run.ended(1, None, raised("no data"))
    with pytest.raises(DeadlineExceeded, match="worker:0 did not end"):
        run.wait(0.0)
    assert len(workers.said) == 1


def test_a_program_that_ends_itself_has_no_traceback() -> None:
    assert failure_of(SystemExit("the images are missing")) == Failure("SystemExit: the images are missing")


def test_stop_asks_those_that_run_and_after_it_wait_returns() -> None:
    run, workers = run_of(3)
    run.ended(1, 7)
    assert run.stop().wait().results == ["drained", 7, "drained"]
    assert workers.asked == [0, 2] and workers.killed == []
    run.stop()
    assert workers.asked == [0, 2]


def test_stop_ends_those_that_do_not_and_that_is_no_failure() -> None:
    run, workers = run_of(2, obedient=False)
    assert run.stop(timeout=0.0).wait().results == [None, None]
    assert workers.killed == [0, 1] and repr(run).count("stopped") == 2


def test_what_failed_before_stop_is_still_raised() -> None:
    run, _ = run_of(2)
    run.ended(0, None, raised("no data"))
    with pytest.raises(DpsError, match="worker:0 failed: RuntimeError: no data"):
        run.stop().wait()


def test_a_deadline_names_who_goes_on() -> None:
    run, _ = run_of(3)
    run.ended(1, 7)
    with pytest.raises(DeadlineExceeded, match=r"worker:0, worker:2 did not end within 0.0 s"):
        run.wait(0.0)


def test_an_interrupted_wait_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = run_of(1)

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt) as told:
            run.wait()
    (note,) = told.value.__notes__
    assert "run.wait()" in note and "run.stop()" in note
    run.ended(0, 3)
    assert run.wait().results == [3]


def test_its_repr_tells_workers_step_and_address() -> None:
    run, _ = run_of(2)
    run.opened({"worker": "worker:0", "step": 0, "last_step": 400, "batch": 32, "placement": []})
    run.pushed(row(12, 0.25))
    run.ended(1)
    assert repr(run) == (
        "<LocalRun of train at 127.0.0.1:2220: worker:0 running, worker:1 done; step 12 of 400, loss 0.25>"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_of_tqdm_with_loss_and_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run, _ = run_of(1)
    run.opened({"worker": "worker:0", "step": 0, "last_step": 400, "batch": 32, "placement": []})
    shown = progress.display(run.standing, None)
    shown.show()
    assert terminal.getvalue() == ""  # nobody has pushed
    run.pushed(row(100, 0.25))
    shown.show()
    run.pushed(row(101, None))  # a push without a loss leaves the last one
    shown.close()
    assert all(words in terminal.getvalue() for words in ("101/400", "loss=0.25", "examples/s="))


def test_a_terminal_without_tqdm_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run, _ = run_of(1)
    run.pushed(row(100, 0.25))
    shown = progress.display(run.standing, None)
    shown.show()
    shown.show()
    shown.close()
    assert terminal.getvalue().startswith("[dps] step 100, loss 0.25, ") and terminal.getvalue().count("\n") == 1


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), None), (Terminal(), False)])
def test_nothing_is_shown_where_there_is_no_terminal_or_none_is_wanted(
    stream: io.StringIO, wanted: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    run, _ = run_of(1)
    shown = progress.display(run.standing, wanted)
    shown.show()
    shown.close()
    assert stream.getvalue() == ""


def test_a_traceback_shows_the_lines_of_code_that_is_in_no_file() -> None:
    show_sources({"<a cell>": ["def train(server):\n", "    raise ValueError('no data')\n"]})
    names: dict[str, Any] = {}
    exec(compile("".join(sources()["<a cell>"]), "<a cell>", "exec"), names)
    try:
        names["train"](None)
    except ValueError as error:
        failure = failure_of(error)
    assert "raise ValueError('no data')" in failure.trace


def test_a_worker_whose_reports_cannot_be_read_has_failed_and_holds_up_nobody() -> None:
    class Gone:
        code = 0
        wait = staticmethod(lambda patience_s: True)

    run, _ = run_of(1)
    (orders_out, orders), (reports, reports_in) = os.pipe(), os.pipe()
    write_value(reports_in, {"progress": [{"step": 1}], "ago_s": [0.0]})
    os.close(reports_in)
    ProcessTasks._read_reports(object.__new__(ProcessTasks), Gone(), 0, {}, orders, reports, run)  # type: ignore[arg-type]
    os.close(orders_out)
    assert run.states() == {"worker:0": "failed"} and "KeyError" in run.failed


def test_a_launcher_without_a_descriptor_left_goes_on_when_a_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OutOfDescriptors("no descriptor is left")

    monkeypatch.setattr(leaving, "Caller", refuse)
    leaving.report_end("127.0.0.1:2220", 0, "ended with exit code 1", 1)


def test_rows_that_come_late_follow_those_that_are_known_and_change_no_progress() -> None:
    """Rows of a process come in groups. Whoever looks at the new ones of a run sees each once."""
    run, _ = run_of(2)
    run.pushed(row(2, 0.5), 0.1)
    run.pushed(row(1, 0.7, worker=1), 0.3)
    assert [found["step"] for found in run.history] == [2, 1]
    assert (run.standing.step, run.standing.loss, run.standing.pushes) == (2, 0.5, 2)
    run.pushed(row(3, 0.4), 0.0)
    assert (run.standing.step, run.standing.loss) == (3, 0.4)
    for task in range(2):
        run.ended(task)
    assert [(found["step"], found["worker"][-1]) for found in run.history] == [(1, "1"), (2, "0"), (3, "0")]
    assert 0.15 < run.history[1]["at"] - run.history[0]["at"] < 1.0
