"""`session.step_in_place`: the bits of a step, read where the ps has them."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.messages.sessions import PushMissing
from tests.client.test_at_once import Asked, asked, ones, session, trained, values  # noqa: F401
from tests.in_process import cluster, on_all
from tests.interrupting import at_some_lines, interrupted_at
from tests.tuned import RESENT_SOON, tune

WAYS: dict[str, dict[str, Any]] = {
    "async": {}, "sync": {"update": "sync"}, "bounded": {"update": "bounded:2"}, "local": {"update": dps.Local(2)},
    "sockets": {"shared_memory": False}, "sync sockets": {"shared_memory": False, "update": "sync"},
    "compressed": {"compression": dps.compress.Float16()}, "parts": {"partitioner": lambda shape, dtype: 2},
    "large": {"params": {"w": np.zeros((100, 170), np.float32), "c": np.zeros(77, np.float32), "l": np.zeros(10**6)}},
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("own", [True, False], ids=["own memory", "arrays of the caller"])
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_are_those_of_a_step(way: str, ps: int, own: bool) -> None:
    def run(in_place: bool) -> list[dict[str, Any]]:
        rng, found = np.random.default_rng(7), []
        with cluster(ps, 1) as (server,), session(server, **({"optimizer": dps.optim.Adam(0.1)} | WAYS[way])) as s:
            given = s.gradients() if in_place and own else s.pull()
            for number in range(4):
                for array in given.values():
                    array[...] = rng.normal(size=array.shape)
                if not in_place:
                    found.append(s.step(given, loss=number))
                    continue
                with s.step_in_place(given, loss=number) as read:
                    assert not any(array.flags.writeable for array in read.values())
                    for array in given.values():
                        array[...] = np.nan  # the caller's again
                    found.append({name: array.copy() for name, array in read.items()})
            assert s.global_step == (2 if way == "local" else 4)
            read_at = s.version
            assert s.pull(if_newer_than=read_at) is None or way == "local"
        return found

    for one, other in zip(run(True), run(False), strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def test_it_takes_one_message_and_what_is_read_stays_while_others_push(asked: Asked) -> None:  # noqa: F811
    with trained() as s:
        own = s.gradients()
        asked.clear()
        for number in range(1, 30):  # more than there are buffers
            for array in own.values():
                array[...] = 1.0
            with s.step_in_place(own) as read:
                assert float(read["w"][0, 0]) == 1 - 2 * number
                if number > 1:
                    assert asked == ["Push at once"]
                s.push(ones())
                assert float(read["w"][0, 0]) == float(read["c"][76]) == 1 - 2 * number
            asked.clear()
        s.push(ones())  # tells the ps that the last block is over
        assert s.stats()["ps:0"]["leases"] == 0


def test_two_workers_in_sync_read_the_same_version() -> None:
    def work(server: dps.Server) -> list[float]:
        with session(server, update="sync") as s:
            found = []
            for _ in range(6):
                with s.step_in_place(ones()) as read:
                    found.append(float(read["w"][99, 169]))
            return found

    with cluster(1, 2) as servers:
        assert on_all(servers, work) == [[-1, -2, -3, -4, -5, -6]] * 2


def test_a_refused_gradient_is_told_before_the_block_and_the_next_step_is_made() -> None:
    bad = ones()
    bad["c"][3] = np.nan
    with trained() as s:
        with pytest.raises(ValueError, match="the gradient of c has NaN or infinite values"), s.step_in_place(bad):
            raise AssertionError("the block of a step that was refused")
        with pytest.raises(ValueError, match=r"w has shape \(3,\)"), s.step_in_place({"w": np.zeros(3, np.float32)}):
            raise AssertionError("the block of a step that was refused")
        with s.step_in_place(ones()) as read:
            assert float(read["w"][0, 0]) == -1.0 and s.global_step == 1


def test_without_with_a_warning_says_that_nothing_was_pushed(caplog: pytest.LogCaptureFixture) -> None:
    with trained() as s:
        s.step_in_place(ones())
        assert s.global_step == 0 and "worker:0: step_in_place was called without `with`" in caplog.text
        caplog.clear()
        with s.step_in_place(ones()):
            pass
        assert s.global_step == 1 and "without" not in caplog.text


def test_an_error_of_the_block_keeps_no_version() -> None:
    with trained() as s:
        for _ in range(5):
            with pytest.raises(KeyError), s.step_in_place(ones()):
                raise KeyError("the block's own")
        assert values(s) == (-5.0, -5.0)  # each push was made
        s.push(ones())
        assert s.stats()["ps:0"]["leases"] == 0


def test_a_hook_that_pulls_a_later_version_does_not_change_what_is_read() -> None:
    class Pulls(dps.Hook):
        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            if loss is not None:
                session.push(ones())
                session.pull()

    with trained(hooks=[Pulls()]) as s:
        for count in (1, 3):
            with s.step_in_place(ones(), loss=0.0) as read:
                assert float(read["w"][0, 0]) == -count and s.version.counters == ((0, count),)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C within a `__del__`
@at_some_lines
@pytest.mark.parametrize("ps", [1, 2])
def test_ctrl_c_at_any_line_neither_loses_nor_doubles(ps: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # with sockets it would be the ordinary way
    tune(monkeypatch, client__step_patience_s=5.0, client__probe_s=60.0, **RESENT_SOON)

    def step() -> None:
        with s.step_in_place(ones(4.0)):
            pass

    with cluster(ps, 1) as (server,), session(server) as s:
        before, line, reached = values(s)[0], 1, True
        while reached and line < 700:
            reached = interrupted_at(line, step)
            s._pushes.drain()
            s.push(ones())
            after, other = values(s)
            assert before - after in (1.0, 5.0) and after == other, f"at line {line}"
            before, line = after, line + every


def test_after_a_hook_that_rolls_the_run_back_the_restored_values_are_read(tmp_path: Path) -> None:
    class Restores(dps.Hook):
        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            if loss is not None:
                session.restore()

    with cluster(1, 1) as (server,), session(server, checkpoint_dir=str(tmp_path), hooks=[Restores()]) as s:
        s.push(ones())
        s.save()
        s.push(ones())
        with s.step_in_place(ones(), loss=0.0) as read:
            assert float(read["w"][0, 0]) == -1.0 and s.global_step == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C within a `__del__`
@at_some_lines
@pytest.mark.parametrize(("ps", "update"), [(1, "async"), (2, "sync")])
def test_ctrl_c_at_any_line_leaves_no_version_held(
    ps: int, update: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tune(monkeypatch, client__step_patience_s=5.0, client__probe_s=60.0, **RESENT_SOON)

    def step() -> None:
        with s.step_in_place(own):
            pass

    def view() -> None:
        with s.view():
            pass

    def asked_view() -> None:  # in sync the values that came with the push are gone
        s.pull()
        view()

    with cluster(ps, 1) as (server,), session(server, update=update) as s:
        own = s.gradients()
        for call in (step, view, asked_view, lambda: s.step(ones())):
            line, reached = 1, True
            while reached:
                reached, line = interrupted_at(line, call), line + every
                s._pushes.drain()
                s.push(ones())
                s.push(ones())  # in sync the last push keeps a version for a pull
                kept = {request for _, request, *_ in s._training._at_once._holds}
                assert not any(peer.lane.reading - kept for peer in s._connection.peers.values()), f"at line {line}"


@pytest.mark.parametrize("update", ["sync", "async"])
def test_what_a_block_without_an_end_held_is_released_by_the_next_call(update: str) -> None:
    with cluster(1, 1) as (server,), session(server, update=update) as s:
        s.push(ones())
        s.pull()  # in sync the next view has to ask
        block = s.view()
        block.__enter__()
        del block
        s.push(ones())
        s.push(ones())
        assert len(s._connection.peers[0].lane.reading) <= (update == "sync")  # in sync that of the last push


def test_a_block_that_ends_while_another_thread_is_in_a_call_is_released_by_the_next_one() -> None:
    large = {"w": np.zeros(2_000_000, np.float32)}  # its release is a message
    taken, over = threading.Event(), threading.Event()

    def call() -> None:
        with s._turns.lock:
            s._turns.call = "push"
            taken.set()
            over.wait(60)

    with cluster(1, 1) as (server,), session(server, params=large) as s:
        block = s.view()
        block.__enter__()
        other = threading.Thread(target=call)
        other.start()
        taken.wait(60)
        with pytest.raises(RuntimeError, match="a session serves one thread at a time"):
            block.__exit__(None, None, None)
        over.set()
        other.join(60)
        s.push(large)
        assert not s._connection.peers[0].lane.reading


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_block_is_entered_once(update: str) -> None:
    with cluster(1, 1) as (server,), session(server, update=update) as s:
        block = s.step_in_place(ones())
        with block:
            pass
        view = s.view()
        with view, pytest.raises(RuntimeError, match=r"entered a second time; write for each: with session"):
            view.__enter__()
        with pytest.raises(RuntimeError, match="entered a second time"), block:
            pass
        assert s.global_step == 1
        s.push(ones())
        s.push(ones())
        assert len(s._connection.peers[0].lane.reading) <= (update == "sync")


@pytest.mark.parametrize("ps", [1, 2])
def test_a_push_that_is_sent_again_under_its_request_does_not_release_what_that_request_lends(
    ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ps may say that it lacks a push which was posted: the question about it has overtaken the push."""
    continue_posted, lost = Caller.continue_posted, list[bool]()

    def continued(self: Caller, to: Any, posted: Any, request: Any) -> None:
        continue_posted(self, to, posted, request)
        if lost:
            self._requests.feed_answer(posted[0], PushMissing(request.push), self.now())

    monkeypatch.setattr(Caller, "continue_posted", continued)
    params = {f"w{n}": np.zeros(4000, np.float32) for n in range(ps)}
    ones_of = {name: np.ones_like(value) for name, value in params.items()}
    with cluster(ps, 2) as servers, contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update="async"))
            for server in servers
        )
        one.step(ones_of)
        other.step(ones_of)
        tune(monkeypatch, client__step_patience_s=0.0)
        lost.append(True)
        with one.step_in_place(ones_of) as seen:
            before = {name: value.copy() for name, value in seen.items()}
            for _ in range(6):
                other.push(ones_of)
                one._connection.caller.flush()
            assert all((seen[name] == value).all() for name, value in before.items())


def test_a_pull_to_the_callers_arrays_that_is_late_leaves_no_version_held() -> None:
    with cluster(1, 1) as (server,), session(server, update="sync") as s:
        s.push(ones())
        out = s.pull()
        for _ in range(50):
            with contextlib.suppress(dps.DeadlineExceeded):
                s.pull(out=out, timeout=0.0)
        s.push(ones())
        s.push(ones())
        assert len(s._connection.peers[0].lane.reading) <= 1
