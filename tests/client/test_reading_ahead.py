"""Loops that read ahead: values that come with a push, values in place, and gradients whose memory is used again."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.bundles import Outbox
from dps.actors.caller import Caller
from dps.client import ahead, at_once
from tests.client.test_at_once import Asked, asked, ones, session, trained, values
from tests.in_process import cluster
from tests.tuned import tune

__all__ = ["asked"]
LARGE = {"w": np.zeros(2_000_000, np.float32)}
"""Too large for one message each way."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=20.0, nodes__first_resend_s=20.0)
    monkeypatch.setattr(ahead, "FRESH_S", 60.0)


def first(read: Any) -> float:
    """The element that all have."""
    array = read["w"]
    assert (array == array.flat[0]).all(), "the values are of several versions"
    return float(array.flat[0])


def leases(s: dps.Session) -> int:
    """How many versions the ps keep for readers, once they were told what is not read any more."""
    s.push({name: 0 * value for name, value in s.pull().items()})
    return sum(of["leases"] for of in s.stats().values() if "leases" in of)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
def test_the_values_of_a_turn_come_with_the_push_before(ps: int, in_place: bool, asked: Asked) -> None:
    with cluster(ps, 1) as (server,), session(server) as s:
        loop, read = s.prefetch(in_place=in_place), list[float]()
        asked.clear()
        for turn in range(6):
            read.append(first(next(loop)))
            reply = s.push_async(ones())
            assert reply.result() == dps.Push(turn + 1, True, min(turn, 1))
        assert read == [0.0, 0.0, -1.0, -2.0, -3.0, -4.0]
        assert asked.count("Pull at once") == 2 * ps and asked.count("Push at once") == 6 * ps and "Pull" not in asked
        loop.close()  # type: ignore[attr-defined]
        asked.clear()
        s.push_async(ones()).result()
        assert values(s) == (-7.0, -7.0) and leases(s) == 0
        assert not any(peer.lane.reading for peer in s._connection.peers.values())


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("params", [{"w": np.zeros(1000, np.float32)}, LARGE], ids=["small", "large"])
def test_values_in_place_stay_as_they_are_until_the_next_turn(params: Any, shared: bool) -> None:
    with cluster(1, 1) as (server,), dps.Session(
        server, params, optimizer=dps.optim.SGD(1.0), update="async", shared_memory=shared
    ) as s:  # fmt: skip
        read, memories = list[float](), set[int]()
        for turn, value in zip(range(20), s.prefetch(in_place=True), strict=False):
            read.append(first(value))
            assert not value["w"].flags.writeable
            grads = s.gradients()
            grads["w"][...] = 1
            memories.add(grads["w"].ctypes.data)
            assert s.push_async(grads).result().step == turn + 1
            assert first(value) == read[-1]
        assert read == [0.0, 0.0, *(-float(turn) for turn in range(1, 19))]
        assert len(memories) == 2 and first(s.pull()) == -20.0 and leases(s) == 0


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
@pytest.mark.parametrize("between", ["push", "step", "rows", "assign", "another loop", "a while"])
def test_what_came_with_a_push_does_not_serve_after_another_change(
    between: str, in_place: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trained() as s:
        loop = s.prefetch(in_place=in_place)
        next(loop)
        s.push_async(ones()).result()
        asked.clear()
        expected = -1.0
        if between == "push":
            s.push(ones())
            expected = -2.0
        elif between == "step":
            s.step(ones())
            expected = -2.0
        elif between == "rows":
            s.push({"w": dps.Rows(np.arange(100), ones()["w"])})
            expected = -2.0
        elif between == "assign":
            s.assign({"w": np.full((100, 170), 7, np.float32)})
            expected = 7.0
        elif between == "another loop":
            next(s.prefetch(in_place=not in_place))
        else:
            monkeypatch.setattr(ahead, "FRESH_S", 0.001)
            time.sleep(0.01)
        assert first(next(loop)) == 0.0 and "Pull at once" in asked
        assert first(next(loop)) == expected
        del loop
        gc.collect()
        assert leases(s) == 0


def test_a_push_that_is_refused_brings_no_values() -> None:
    with trained() as s:
        loop = s.prefetch(in_place=True)
        next(loop)
        bad = s.push_async(ones(np.nan))
        assert first(next(loop)) == 0.0 and first(next(loop)) == 0.0
        with pytest.raises(ValueError, match="NaN"):
            bad.result()
        assert s.push_async(ones()).result().accepted
        assert [first(next(loop)) for _ in range(2)] == [0.0, -1.0]


def test_a_loop_in_place_goes_on_after_a_rollback(tmp_path: Path) -> None:
    with trained(checkpoint_dir=tmp_path / "run") as s:
        s.push(ones())
        name, loop = s.save(), s.prefetch(in_place=True)
        read = next(loop)
        s.push_async(ones())
        assert s.restore(name) == 1 and first(read) == -1.0
        assert first(next(loop)) == -1.0
        grads = s.gradients()
        for array in grads.values():
            array[...] = 1
        assert s.push_async(grads).result() == dps.Push(2, True, 0)
        assert [first(next(loop)) for _ in range(2)] == [-1.0, -2.0]


def test_a_loop_that_is_left_keeps_no_version_and_later_pushes_bring_none(asked: Asked) -> None:
    with trained() as s:
        for turn, _ in enumerate(s.prefetch(in_place=True)):
            s.push_async(ones())
            if turn == 3:
                break
        gc.collect()
        assert leases(s) == 0 and not s._training.ahead.loops and s._training.ahead._coming is None  # type: ignore[attr-defined]


def test_a_loop_that_ends_in_another_thread_leaves_its_values_to_the_next_call() -> None:
    with cluster(1, 1) as (server,), dps.Session(server, LARGE, optimizer=dps.optim.SGD(1.0), update="async") as s:
        loop = s.prefetch(in_place=True)
        next(loop)
        thread = threading.Thread(target=loop.close)  # type: ignore[attr-defined]
        thread.start()
        thread.join()
        assert s._pulls.left
        assert leases(s) == 0 and not s._pulls.left


def test_a_loop_in_place_of_a_closed_session_says_so() -> None:
    with trained() as s:
        loop = s.prefetch(in_place=True)
        next(loop)
        s.close()
        with pytest.raises(ValueError, match="the session is closed"):
            next(loop)


def test_names_and_values_in_place_do_not_go_together() -> None:
    with trained() as s, pytest.raises(ValueError, match=r"prefetch: got names \['w'\] with in_place=True"):
        s.prefetch(["w"], in_place=True)


def keep_slice(grads: Any) -> Any:
    return grads["w"][:3]


def keep_view(grads: Any) -> Any:
    return memoryview(grads["w"])


def keep_flat(grads: Any) -> Any:
    return grads["w"].reshape(-1)[::2]


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("keep", [keep_slice, keep_view, keep_flat])
def test_gradients_are_not_given_again_while_the_program_refers_to_them(
    keep: Callable[[Any], Any], shared: bool
) -> None:
    with trained(shared_memory=shared) as s:
        kept = keep(s.gradients())
        at = np.asarray(kept).ctypes.data
        others = [s.gradients() for _ in range(3)]
        assert at not in [grads["w"].ctypes.data for grads in others]
        assert len({grads["w"].ctypes.data for grads in others}) == 3
        del kept
        assert s.gradients()["w"].ctypes.data == at


def test_gradients_are_not_given_again_while_a_push_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with trained() as s:
        grads = s.gradients()
        for array in grads.values():
            array[...] = 1
        at, reply = grads["w"].ctypes.data, s.push_async(grads)
        del grads, array
        assert s.gradients()["w"].ctypes.data != at
        reply.result()
        assert s.gradients()["w"].ctypes.data == at and values(s) == (-1.0, -1.0)


@pytest.mark.parametrize("params", [{"w": np.zeros(1000, np.float32)}, LARGE], ids=["small", "large"])
def test_loops_of_a_session_that_only_reads_keep_no_versions_of_loops_before(params: Any) -> None:
    with cluster(1, 2) as (server, other), dps.Session(
        server, params, optimizer=dps.optim.SGD(1.0), update="async"
    ) as s, dps.Session(other) as reader:  # fmt: skip
        for turn in range(5):
            s.push({"w": np.ones_like(params["w"])})
            for read in reader.prefetch(in_place=True):
                assert first(read) == -1.0 - turn
                break
        assert len(reader._pulls.left) == 2, "the values of the last turn, and those on their way"
        reader.pull()
        assert not reader._pulls.left
        assert not any(peer.lane.reading for peer in reader._connection.peers.values())


@pytest.mark.parametrize("params", [{"w": np.zeros(1000, np.float32)}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
def test_a_loop_that_ends_in_another_thread_sends_nothing_there(
    params: Any, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders, queue = set[str](), Outbox.queue_message

    def queued(self: Outbox, *about: Any) -> None:
        senders.add(threading.current_thread().name)
        queue(self, *about)

    with cluster(1, 2) as (server, other), dps.Session(
        server, params, optimizer=dps.optim.SGD(1.0), update="async"
    ) as s, dps.Session(other) as reader:  # fmt: skip
        loops = [each.prefetch(in_place=in_place) for each in (s, reader)]
        for loop in loops:
            next(loop)
        monkeypatch.setattr(Outbox, "queue_message", queued)
        for loop in loops:
            thread = threading.Thread(target=loop.close, name="another")  # type: ignore[attr-defined]
            thread.start()
            thread.join()
        assert "another" not in senders
        reader.pull()
        assert leases(s) == 0


def test_what_another_thread_leaves_while_the_session_releases_is_kept_for_the_next_call() -> None:
    class Left:
        is_released = False

        def release(self) -> None:
            if not self.is_released:
                self.is_released = True
                if self is one:
                    s._pulls.left.append((other,))

    one, other = Left(), Left()
    with trained() as s:
        s._pulls.left.append((one,))
        s.pull()
        assert one.is_released and other.is_released and not s._pulls.left


def test_a_loop_that_ctrl_c_has_ended_keeps_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with trained() as s:
        loop = s.prefetch()
        with monkeypatch.context() as patch:
            patch.setattr(Caller, "listen", interrupt)
            with contextlib.suppress(KeyboardInterrupt):
                next(loop)
        assert not any(peer.lane.reading for peer in s._connection.peers.values())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="prefetch: KeyboardInterrupt has ended these values; begin others"):
                next(loop)
        assert leases(s) == 0


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
def test_values_do_not_go_back_after_a_turn_whose_values_did_not_come(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came with the push before was read after newer values, which were pulled in the place of late ones."""
    with cluster(1, 2) as servers, session(servers[0]) as s, session(servers[1]) as other:
        loop = s.prefetch(in_place=in_place)
        next(loop)
        s.push_async(ones()).result()
        other.push(ones())
        finish = at_once.AtOnce.finish

        def late(self: at_once.AtOnce, posted: Any, keep: Any) -> None:
            monkeypatch.setattr(at_once.AtOnce, "finish", finish)
            posted.release()

        monkeypatch.setattr(at_once.AtOnce, "finish", late)
        assert [first(next(loop)) for _ in range(2)] == [-2.0, -2.0]
