"""Small synchronous steps through sessions: the same bits, whatever comes in between."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.client import at_once, transfers
from dps.client.lanes import Lane
from dps.client.pushing import Pushes
from dps.errors import TaskLost, Unavailable
from tests.in_process import cluster, on_all
from tests.interrupting import at_some_lines, interrupted_at
from tests.tuned import RESENT_SOON, tune

STEPS = 8


def first_values() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {"w": rng.normal(size=(100, 170)).astype(np.float32), "b": {"c": rng.normal(size=77).astype(np.float32)}}


def gradients(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(100 + step)
    return {"w": rng.normal(size=(100, 170)).astype(np.float32), "b": {"c": rng.normal(size=77).astype(np.float32)}}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step that was begun this way whether it was made at once."""
    made: list[bool] = []
    push = at_once.AtOnce._push

    def noted(self: at_once.AtOnce, *arguments: Any) -> Any:
        found = push(self, *arguments)
        made.append(found is not None)
        return found

    monkeypatch.setattr(at_once.AtOnce, "_push", noted)
    tune(monkeypatch, client__step_patience_s=5.0)
    return made


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(
        server,
        **{"params": first_values(), "optimizer": dps.optim.Adam(0.1), "update": "sync", "timeout": 60} | settings,
    )


def trained(workers: int = 2, in_place: bool = False, **settings: Any) -> Any:
    begin = threading.Barrier(workers)

    def work(server: dps.Server) -> Any:
        with session(server, **settings) as s:
            begin.wait(60)
            values = s.pull()
            given = s.gradients() if in_place else None
            for step in range(STEPS):
                new = gradients(10 * step + server.task)
                if given is not None:
                    given["w"][...], given["b"]["c"][...] = new["w"], new["b"]["c"]
                values = s.step(given or new)
                assert s.global_step == step + 1 and s.version.counters == ((0, step + 1),)
            np.testing.assert_array_equal(s.pull()["w"], values["w"])
            return values

    with cluster(1, workers, "ipc", Path(os.environ.get("TMPDIR", "/tmp"))) as servers:
        return on_all(servers, work)


def assert_same(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(first["w"], second["w"])
    np.testing.assert_array_equal(first["b"]["c"], second["b"]["c"])


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bits_are_those_of_the_ordinary_way(workers: int, made: list[bool]) -> None:
    small = trained(workers)
    assert sum(made) >= workers * (STEPS - 2)  # but for those until all have found the ps on their machine
    made.clear()
    ordinary = trained(workers, shared_memory=False)
    assert not made
    for values in small:
        assert_same(values, ordinary[0])


def test_gradients_in_place_are_not_copied_and_make_the_same_steps(made: list[bool]) -> None:
    in_place = trained(in_place=True)
    assert any(made)
    assert_same(in_place[0], trained()[0])


def test_a_step_that_takes_too_long_goes_the_ordinary_way(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=0.0)
    late = trained()
    assert made and not any(made)
    tune(monkeypatch, client__step_patience_s=5.0)
    assert_same(late[0], trained()[0])


def test_an_answer_that_is_lost_is_asked_for_again(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    hear, lost = Caller.hear, []

    def forgetful(self: Caller, numbers: Any, usual: Any, wait_s: float) -> Any:
        answers = hear(self, numbers, usual, wait_s)
        lost.append(type(answers[min(numbers)]))
        return {} if len(lost) % 3 == 0 else answers

    tune(monkeypatch, **RESENT_SOON)
    monkeypatch.setattr(Caller, "hear", forgetful)
    values = trained()
    assert tuple in lost and any(made) and not all(made)
    monkeypatch.setattr(Caller, "hear", hear)
    assert_same(values[0], trained()[0])


def test_a_step_that_is_interrupted_counts_once(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        ones = {"w": np.ones((100, 170), np.float32), "b": {"c": np.ones(77, np.float32)}}
        before = s.pull()["w"]
        for interrupted in (False, True, False):
            with monkeypatch.context() as patch:
                if interrupted:
                    patch.setattr(Caller, "hear", _interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        s.step(ones)
                    s.pull()  # what is computed before that is of an older step
                else:
                    s.step(ones)
        np.testing.assert_allclose(s.pull()["w"], before - 3.0, rtol=1e-5)
        assert s.global_step == 3
    assert made == [True]  # the third waits for the result of the second


def _interrupted(self: Caller, number: int, usual: Any, wait_s: float) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_on_the_way_to_the_ordinary_one_loses_nothing(
    made: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Pushes.begin_posted
    calls: list[None] = []

    def interrupted(self: Pushes, *arguments: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return begin(self, *arguments, **more)

    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        before = s.step(filled(1.0))["w"]
        tune(monkeypatch, client__step_patience_s=0.0)
        monkeypatch.setattr(Pushes, "begin_posted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.step(filled(1.0))
        s.pull()  # what is computed before that is of an older step
        s.step(filled(2.0))
        np.testing.assert_allclose(s.pull()["w"], before - 3.0, rtol=1e-5)
    assert made == [True, False]


def test_an_interrupt_amid_the_values_that_come_with_a_push_leaves_the_push_to_be_heard_of(
    made: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0), timeout=60) as s:
        before = s.step(filled(1.0))["w"]
        tune(monkeypatch, client__step_patience_s=0.0)
        with monkeypatch.context() as patch:
            patch.setattr(transfers, "copy_steadily", interrupted)
            with pytest.raises(KeyboardInterrupt):
                s.step(filled(1.0))
        s.step(filled(0.0))  # after the one that was interrupted
        np.testing.assert_allclose(s.step(filled(2.0))["w"], before - 3.0, rtol=1e-5)


@at_some_lines
@pytest.mark.parametrize("out", [None, first_values()], ids=["new arrays", "own arrays"])
def test_ctrl_c_at_any_line_of_a_step_neither_loses_nor_doubles(
    made: list[bool], out: Any, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, **RESENT_SOON)
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        before, line, reached = float(s.step(filled(0.0))["b"]["c"][0]), 1, True
        while reached and line < 700:
            reached = interrupted_at(line, lambda: s.step(filled(4.0), out=out))
            s._pushes.drain()
            s.pull()
            for _ in range(2):
                after = float(s.step(filled(1.0))["b"]["c"][0])
            assert round(before - after, 2) in (2.0, 6.0), f"at line {line}"
            before, line = after, line + every


def filled(value: float) -> dict[str, Any]:
    return {"w": np.full((100, 170), value, np.float32), "b": {"c": np.full(77, value, np.float32)}}


@pytest.mark.parametrize("out", [None, first_values()], ids=["new arrays", "own arrays"])
def test_the_values_after_a_hook_has_rolled_the_run_back_are_of_the_new_epoch(
    made: list[bool], tmp_path: Path, out: Any
) -> None:
    class Restores(dps.Hook):
        name = ""

        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            if loss is not None:
                session.restore(self.name)

    hook, folder = Restores(), str(tmp_path)
    sgd = dps.optim.SGD(1.0)
    with cluster(1, 1) as (server,), session(server, optimizer=sgd, checkpoint_dir=folder, hooks=[hook]) as s:
        saved = s.step(filled(1.0))
        hook.name = s.save()
        s.step(filled(1.0))
        values = s.step(filled(1.0), loss=1.0, out=out)
        assert_same(values, saved)
        assert out is None or values is out
        assert (s.version.epoch, s.global_step) == (2, 1)
        np.testing.assert_allclose(s.step(filled(1.0))["w"], saved["w"] - 1.0, rtol=1e-5)
    assert made == [True] * 4


def test_no_step_is_made_once_the_node_was_told_to_end(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        s.step(gradients(0))
        with monkeypatch.context() as patch:
            patch.setattr(server._standing, "exit_code", 3)
            with pytest.raises(TaskLost):
                s.step(gradients(1))
        assert s.step(gradients(1))["w"].shape == (100, 170) and s.global_step == 2


def test_a_variable_in_parts_has_the_values_after_the_step(made: list[bool]) -> None:
    def halves(shape: Any, dtype: Any) -> int:
        return 2

    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0), partitioner=halves) as s:
        before = s.pull()["w"]
        for count in (1, 2):
            np.testing.assert_allclose(s.step(filled(1.0))["w"], before - count, rtol=1e-5)
        with s.view() as seen:
            assert seen["w"].shape == (100, 170) and not seen["w"].flags.writeable
    assert made == [True, True]


def test_where_the_values_cannot_be_read_sockets_are_used(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        ones = {"w": np.ones((100, 170), np.float32), "b": {"c": np.ones(77, np.float32)}}
        before = s.pull()["w"]

        def gone(self: Lane, name: list[int]) -> Any:
            raise Unavailable("the memory of process 1 cannot be reached from here: no such process")

        monkeypatch.setattr(Lane, "attach", gone)
        s._connection.peers[0].lane.versions.clear()
        for count in (1, 2):
            np.testing.assert_allclose(s.step(ones)["w"], before - count, rtol=1e-5)
    assert made == [True]


def test_a_refused_gradient_is_told_and_the_next_step_is_made(made: list[bool]) -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        bad = gradients(0)
        bad["b"]["c"][3] = np.nan
        with pytest.raises(ValueError, match="the gradient of b/c has NaN or infinite values"):
            s.step(bad)
        assert s.step(gradients(1))["w"].shape == (100, 170) and s.global_step == 1
    assert made == [False, True]


def test_hooks_hear_of_every_step_once(made: list[bool]) -> None:
    heard: list[tuple[int, Any]] = []

    class Listens(dps.Hook):
        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            assert result.accepted and result.staleness == 0
            heard.append((result.step, loss))

    with cluster(1, 1) as (server,), session(server, hooks=[Listens()]) as s:
        for step in range(3):
            s.step(gradients(step), loss=float(step))
    assert heard == [(1, 0.0), (2, 1.0), (3, 2.0)] and made == [True, True, True]


@pytest.mark.parametrize(
    "settings",
    [
        {"update": "bounded:2"},
        {"update": dps.SyncReplicas(1, 1, initial_tokens=1)},
        {"compression": dps.compress.Float16()},
    ],
    ids=["bounded", "quotas", "compressed"],
)
def test_other_runs_go_the_ordinary_way(settings: dict[str, Any], made: list[bool]) -> None:
    with cluster(1, 1) as (server,), session(server, **settings) as s:
        s.step(gradients(0))
        assert np.isfinite(s.step(gradients(1))["w"]).all()
    assert not made


def ones() -> dict[str, Any]:
    return {"w": np.ones((100, 170), np.float32), "b": {"c": np.ones(77, np.float32)}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of messages that were sent to be answered in the ordinary way."""
    asked: list[str] = []
    send = Caller.send
    monkeypatch.setattr(
        Caller, "send", lambda self, r, message: (asked.append(type(message).__name__), send(self, r, message))
    )
    return asked


def test_values_that_came_with_a_push_are_those_of_the_next_pull(made: list[bool], asked: list[str]) -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        before = s.pull()
        asked.clear()
        assert s.push(ones()) == dps.messages.replies.Push(1, True)
        first = s.pull()
        np.testing.assert_array_equal(first["w"], before["w"] - 1)
        assert asked == [] and s.version.counters == ((0, 1),)
        s.push(ones())
        out = ones()
        assert s.pull(out=out) is out
        np.testing.assert_array_equal(out["b"]["c"], first["b"]["c"] - 1)
        assert asked == []
        again = s.pull()  # those of before are read
        np.testing.assert_array_equal(again["w"], out["w"])
        assert asked == ["Pull"]
        again["w"][...] = 0.0
        assert s.stats()["ps:0"]["leases"] <= 1


def test_values_that_came_with_a_push_are_seen_where_they_are(
    made: list[bool], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        before = s.pull()
        asked.clear()
        grads = s.gradients()
        for count in range(1, 40):  # more than there are buffers
            grads["w"][...] = grads["b"]["c"][...] = 1.0
            s.push(grads)
            with s.view() as values:
                kept = values["w"].copy()
                np.testing.assert_allclose(kept, before["w"] - 2 * count + 1, atol=1e-5)
                with pytest.raises(ValueError, match="read-only"):
                    values["w"][0, 0] = 1.0
                s.step(ones())  # what is viewed stays as it is
                np.testing.assert_array_equal(values["w"], kept)
        assert asked == [] and all(made)


def test_values_that_are_old_by_now_are_asked_for(
    made: list[bool], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(1, 1) as (server,), session(server, optimizer=dps.optim.SGD(1.0)) as s:
        before = s.pull()["w"]
        s.push(ones())
        reply = s.push_async(ones())
        assert reply.result().accepted
        np.testing.assert_allclose(s.pull()["w"], before - 2, atol=1e-5)
        tune(monkeypatch, client__step_values_s=-1.0)
        asked.clear()
        s.push(ones())
        np.testing.assert_allclose(s.pull(["w"])["w"], before - 3, atol=1e-5)
        s.push(ones())
        np.testing.assert_allclose(s.pull()["w"], before - 4, atol=1e-5)
        assert asked == ["Pull", "Pull"] and len(made) == 3


def test_what_a_pulled_tree_holds_is_the_callers_own(made: list[bool]) -> None:
    with cluster(1, 1) as (server,), session(server) as s:
        s.step(gradients(9))
        first = s.step(gradients(0))
        kept = first["w"].copy()
        first["b"]["c"][...] = 9.0
        second = s.step(gradients(1))
        np.testing.assert_array_equal(first["w"], kept)
        assert not np.shares_memory(first["w"], second["w"]) and not (second["b"]["c"] == 9.0).any()
    assert made == [True, True, True]


@pytest.mark.parametrize("update", ["async", "sync"])
def test_the_network_of_the_demo_goes_in_one_round_trip(made: list[bool], update: str) -> None:
    shapes = [("hidden", (784, 128), (128,)), ("out", (128, 10), (10,))]
    params = {name: {"w": np.zeros(w, np.float32), "b": np.zeros(b, np.float32)} for name, w, b in shapes}
    assert sum(array.nbytes for layer in params.values() for array in layer.values()) == 407_080
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, params, optimizer=dps.optim.SGD(0.5), update=update) as session,
    ):
        for _ in range(4):
            session.step(params)
            session.push(params)
            session.pull()
    assert made == [True] * 8, "one message and one answer for each push and step"
