"""Small asynchronous pushes, and the pulls of `prefetch`, that are on their way while the program goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.client import at_once
from dps.client.membership import Joining
from dps.client.transfers import PullTransfer, PushTransfer
from dps.messages.replies import Push
from dps.messages.runs import AskState
from dps.messages.sessions import Push as PushMessage
from tests.client.test_at_once import Asked, asked, ones, session, trained, values
from tests.in_process import cluster
from tests.interrupting import at_some_lines, interrupted_at
from tests.tuned import RESENT_SOON, tune

__all__ = ["asked"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=5.0)


def lose(monkeypatch: pytest.MonkeyPatch, lost: Callable[[int], bool]) -> None:
    """Lose the posted pushes, counted from 0, of which this says so."""
    post_plain, count = Caller.post_plain, iter(range(1000))

    def losing(self: Caller, to: Any, form: Any, integers: Any) -> None:
        if form is not PushMessage.form_of or not lost(next(count)):
            post_plain(self, to, form, integers)

    monkeypatch.setattr(Caller, "post_plain", losing)


def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer has arrived when the next push is sent."""
    monkeypatch.setattr(Caller, "hear_arrived", lambda *_: None)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("in_place", [False, True], ids=["own arrays", "in place"])
def test_the_bits_of_an_overlapped_loop_are_those_of_the_ordinary_way(
    ps: int, in_place: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.client.ahead.FRESH_S", 60.0)

    def run(shared: bool) -> Iterator[Any]:
        rng = np.random.default_rng(7)
        with cluster(ps, 1) as (server,), session(server, optimizer=dps.optim.Adam(0.1), shared_memory=shared) as s:
            given, ahead = s.gradients() if in_place else ones(), s.prefetch(in_place=in_place)
            for turn in range(12):
                read = next(ahead)
                yield read["w"].copy()
                for array in given.values():
                    array[...] = rng.normal(size=array.shape)
                reply = s.push_async(given)
                assert reply.result() == Push(turn + 1, True, min(turn, 1))
            yield s.pull()["c"]

    small = list(run(True))
    assert asked.count("Push at once") == 12 * ps and asked.count("Pull at once") == 3 * ps  # others come with a push
    assert "Push" not in asked and "Pull" not in asked
    for one, other in zip(small, run(False), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ps", [1, 2])
def test_several_pushes_in_flight_have_a_memory_each(ps: int, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    unheard(monkeypatch)
    with cluster(ps, 1) as (server,), session(server) as s:
        s.pull()
        asked.clear()
        given, replies = ones(), []
        for number in range(6):
            for array in given.values():
                array[...] = 10.0**number
            replies.append(s.push_async(given))
        assert asked == 6 * ps * ["Push at once"] and not any(reply.accepted for reply in replies)
        assert all(len(runs) == 6 for runs in s._pushes.loader._runs.values())
        assert [reply.result().step for reply in replies] == [1, 2, 3, 4, 5, 6]
        assert all(reply.accepted and reply.done() for reply in replies)
        assert values(s) == (-111111.0, -111111.0) and "PushStatus" not in asked


def test_more_pushes_than_the_window_wait_for_room(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    unheard(monkeypatch)
    with trained() as s:
        replies = [s.push_async(ones()) for _ in range(30)]
        assert [reply.result().step for reply in replies] == [*range(1, 31)]
        assert values(s) == (-30.0, -30.0) and s.stats()["ps:0"]["applied"] == 30


def test_hooks_hear_of_each_once_in_order_also_where_nobody_asks_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    class Hears(dps.Hook):
        def after_run(self, session: Any, result: Push, loss: Any) -> None:
            heard.append((loss, result.step))

    unheard(monkeypatch)
    with trained(hooks=[Hears()]) as s:
        for index in range(20):
            s.push_async(ones(), loss=index)
    assert heard == [(index, index + 1) for index in range(20)]


@pytest.mark.thinned
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("then", ["result", "close", "push", "some", "publish", "others"])
def test_a_push_that_is_lost_is_sent_again(ps: int, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=0.02)
    with cluster(ps, 2) as servers, session(servers[1]) as other:
        with session(servers[0]) as s:
            s.pull()
            with monkeypatch.context() as patch:
                lose(patch, lambda count: count in (ps, 2 * ps))  # of the second and the third push, that to one ps
                replies = [s.push_async(ones()) for _ in range(4)]
            if then == "result":
                assert [reply.result(timeout=20).accepted for reply in replies] == 4 * [True]
            elif then == "push":
                assert s.push(ones(0.0)).step == 5
            elif then == "some":
                assert s.push({"c": ones(0.0)["c"]}).accepted
            elif then == "publish":
                s.publish()
            elif then == "others":
                assert replies[3].result().accepted
        assert values(other) == (-4.0, -4.0)
        assert [reply.result() for reply in replies] and all(reply.accepted for reply in replies)


def test_a_late_answer_counts_and_nothing_is_sent_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with trained() as s:
        values(s)
        tune(monkeypatch, client__step_patience_s=0.0)
        asked.clear()
        assert s.push_async(ones()).result().step == 1 and asked == ["Push at once"]
        reply = s.push_async(ones())
        while not reply.done():
            pass
        assert reply.result() == Push(2, True, 1) and asked == 2 * ["Push at once"]


def test_a_late_pull_is_asked_for_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=0.0)
    with trained() as s:
        for turn, read in zip(range(5), s.prefetch(), strict=False):
            assert float(read["w"][0, 0]) in (-turn, 1.0 - turn)
            s.push_async(ones()).result()
        s.push(ones())  # tells what is not read any more
        assert s.stats()["ps:0"]["leases"] == 0


def test_a_refused_gradient_is_told_to_who_asks_and_stops_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with trained() as s:
        bad = s.push_async(ones(np.nan))
        good = s.push_async(ones())
        with pytest.raises(ValueError, match="the gradient of w has NaN or infinite values"):
            bad.result()
        assert bad.accepted is False and good.result().accepted and values(s) == (-1.0, -1.0)


def test_done_does_not_block_and_a_result_has_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with trained() as s:
        s.pull()
        with monkeypatch.context() as patch:
            lose(patch, lambda count: True)
            reply = s.push_async(ones())
        assert not reply.done() and reply.accepted is None
        with pytest.raises(dps.DeadlineExceeded, match="a push took more than"):
            reply.result(timeout=0.01)
        assert reply.result() == Push(1, True, 0) and reply.done() and values(s) == (-1.0, -1.0)


def test_pushes_and_pulls_in_flight_are_given_up_in_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unheard(monkeypatch)
    with trained(checkpoint_dir=tmp_path / "run") as s:
        s.push(ones())
        name, ahead = s.save(), s.prefetch()
        next(ahead)
        replies = [s.push_async(ones()) for _ in range(3)]
        assert s.restore(name) == 1
        assert [reply.result().accepted for reply in replies] == 3 * [False]
        assert float(next(ahead)["w"][0, 0]) == -1.0
        assert s.push_async(ones()).result() == Push(2, True, 0) and values(s) == (-2.0, -2.0)


@pytest.mark.parametrize("update", ["async", "bounded:2", "sync"])
def test_a_pull_that_ctrl_c_has_kept_from_beginning_is_asked_for_by_the_next_call(
    update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = PullTransfer.begin

    def interrupted(self: PullTransfer) -> None:
        monkeypatch.setattr(PullTransfer, "begin", begin)
        raise KeyboardInterrupt

    with cluster(2, 1) as (server,), session(server, update=update, shared_memory=False, timeout=20) as s:
        s.push(ones())
        reply = s._training.pull_async(None)
        operation = s._pulls.start(None, None, after=False)
        monkeypatch.setattr(PullTransfer, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            operation.start()
        assert float(s._pulls.finish(operation, None)["w"][0, 0]) == -1.0
        assert float(reply.result()["w"][0, 0]) == -1.0


@pytest.mark.parametrize("shared", [True, False], ids=["posted", "ordinary"])
def test_who_asks_whether_a_push_is_done_learns_of_a_rollback(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never done: nothing but a wait joined the run again."""
    tune(monkeypatch, client__step_patience_s=0.02)
    about: Any = {"checkpoint_dir": tmp_path / "run", "shared_memory": shared}
    with cluster(1, 2) as servers, session(servers[0], **about) as s, session(servers[1], **about) as other:
        s.push(ones())
        name = s.save()
        other.restore(name)
        reply, deadline = s.push_async(ones()), time.monotonic() + 20
        while not reply.done():
            assert time.monotonic() < deadline, "it is never done"
            time.sleep(0.001)
        assert not reply.result().accepted and reply.done() and values(s) == (-1.0, -1.0)


def test_values_that_a_pull_in_flight_was_lent_stay_until_it_is_asked_for(asked: Asked) -> None:
    with cluster(1, 2) as servers, session(servers[0]) as one, session(servers[1]) as other:
        ahead = one.prefetch()
        assert float(next(ahead)["w"][0, 0]) == 0.0
        for _ in range(40):  # more than a ps keeps versions
            other.push(ones())
        replies = [one.push_async(ones(0.0)) for _ in range(3)]
        assert replies[2].result().accepted
        read = next(ahead)
        assert (read["w"] == read["w"][0, 0]).all() and read["w"][0, 0] == read["c"][0] == 0.0
        assert float(next(ahead)["w"][0, 0]) == -40.0 and "Pull" not in asked
        del ahead
        one.push(ones(0.0))
        assert one.stats()["ps:0"]["leases"] == 0 and not one._connection.peers[0].lane.reading


def test_other_calls_keep_the_answers_of_what_is_in_flight(asked: Asked) -> None:
    with trained() as s:
        ahead = s.prefetch()
        next(ahead)
        replies = [s.push_async(ones()) for _ in range(3)]
        s.stats()
        assert s.lookup("w", [0])[0, 0] in (0.0, -1.0, -2.0, -3.0)
        s.push({"c": ones()["c"]})
        assert [reply.result().step for reply in replies] == [1, 2, 3]
        assert float(next(ahead)["w"][0, 0]) == 0.0 and values(s) == (-3.0, -4.0)


@pytest.mark.slow
@at_some_lines
@pytest.mark.parametrize(("ps", "in_place"), [(1, False), (1, True), (2, False)])
def test_ctrl_c_at_any_line_neither_loses_nor_doubles(
    ps: int, in_place: bool, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest keeps what a Ctrl-C within a `__del__` was about, and with it what it holds
    monkeypatch.setattr(sys, "unraisablehook", lambda about: None)
    # a push that Ctrl-C has kept from leaving is not waited for long
    tune(monkeypatch, client__step_patience_s=0.05, client__probe_s=60.0, **RESENT_SOON)
    with cluster(ps, 1) as (server,), session(server) as s:

        def turn() -> None:
            ahead = s.prefetch(in_place=in_place)
            next(ahead)
            s.push_async(ones(4.0))
            next(ahead)
            s.push_async(ones(8.0)).result()

        before, line, reached = values(s)[0], 1, True
        while reached:
            reached = interrupted_at(line, turn)
            s._pushes.drain()
            s.push(ones())
            after, other = values(s)
            assert before - after in (1.0, 5.0, 13.0) and after == other, f"at line {line}"
            before, line = after, line + every
        s.push(ones())  # tells what is not read any more
        assert s.stats()["ps:0"]["leases"] == 0 and not s._connection.caller._awaited


@pytest.mark.parametrize("ps", [1, 2])
def test_an_ordinary_push_that_ctrl_c_interrupts_is_on_all_ps_or_on_none(
    ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One had it and another one had not, and the next push was given up."""
    tune(monkeypatch, **RESENT_SOON)
    with cluster(ps, 1) as (server,), session(server, shared_memory=False) as s:
        before, line, reached = values(s)[0], 1, True
        while reached:
            reached = interrupted_at(
                line, partial(s._pushes.start, s._pushes.assembly.gradients(ones(4.0)), None, None)
            )
            assert s.push(ones()).accepted, f"at line {line}"
            after, other = values(s)
            assert before - after in (1.0, 5.0) and after == other, f"at line {line}"
            before, line = after, line + 1


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_push_that_could_not_be_sent_is_given_up_and_does_not_leave_in_the_next_incarnation(
    update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resend that came due while the session joined again in the same run epoch sent it under the new incarnation: it
    was applied, and the next push, which had its number, was told as accepted and was not."""
    tune(monkeypatch, **RESENT_SOON)
    begin, enter, fails = PushTransfer.begin, Joining._enter, [True]

    def begin_later(self: PushTransfer) -> None:
        if fails and fails.pop():
            raise MemoryError("once")
        begin(self)

    def enter_slowly(self: Joining, deadline: float) -> None:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            self._caller.turn(0.01)
        enter(self, deadline)

    with cluster(1, 1) as (server,), session(server, update=update, shared_memory=False, timeout=10) as s:
        asked = AskState(s._connection.number)
        s._connection.caller.start(s._connection.chief, asked, lambda answer: False)  # is sent again and again
        monkeypatch.setattr(PushTransfer, "begin", begin_later)
        monkeypatch.setattr(Joining, "_enter", enter_slowly)
        with pytest.raises(MemoryError):
            s.push(ones(4.0))
        assert values(s) == (0.0, 0.0)
        assert s.push(ones(1.0)) == Push(1, True, 0) and values(s) == (-1.0, -1.0)


def test_values_that_were_sent_for_ahead_are_taken_in_whoever_receives_them(asked: Asked) -> None:
    """Else a ps would keep their versions, and all later ones of the session, until they are asked for."""
    with cluster(1, 2) as servers, session(servers[0]) as one, session(servers[1]) as other:
        ahead = one.prefetch()
        next(ahead)
        for _ in range(60):
            one.step(ones())
        assert one.stats()["ps:0"]["leases"] == 1 and not one._connection.peers[0].lane.reading
        read = next(ahead)
        assert read["w"][0, 0] == read["c"][0] == 0.0
        for _ in range(60):
            other.step(ones())
        stats = other.stats()["ps:0"]
        assert stats["leases"] <= 3 and stats["copied_pulls"] == 0 and "Pull" not in asked
        assert one.push(ones()).staleness == 120


def test_a_push_that_did_not_leave_is_sent_while_the_program_only_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, nodes__first_resend_s=0.05)
    with trained() as s:
        with monkeypatch.context() as patch:
            patch.setattr(at_once.AtOnce, "_post", lambda self, asked: None)
            reply = s.push_async(ones())
        end = time.monotonic() + 20
        while values(s)[0] == 0.0 and time.monotonic() < end:
            time.sleep(0.01)
        assert values(s) == (-1.0, -1.0)
        while reply.accepted is None and time.monotonic() < end:
            s.pull()
        assert reply.accepted and reply.result().step == 1


def test_a_wait_for_a_push_that_did_not_leave_ends_in_time_to_send_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, nodes__first_resend_s=0.05, client__slice_s=60.0, client__step_patience_s=0.02)
    with trained() as s:
        lose(monkeypatch, lambda count: count == 0)
        began = time.monotonic()
        assert s.push(ones()).accepted and time.monotonic() - began < 30


def test_whether_a_push_was_accepted_is_known_once_the_answer_has_come() -> None:
    with trained() as s:
        reply = s.push_async(ones())
        for _ in range(5):
            s.pull()
        assert reply.accepted


def test_an_iterator_of_a_closed_session_says_so_and_is_dropped_without_a_word() -> None:
    with cluster(1, 1) as (server,), session(server):
        reader = dps.Session(server)
        ahead, other = reader.prefetch(), reader.prefetch()
        next(ahead)
        next(other)
        reader.close()
        with pytest.raises(ValueError, match="the session is closed"):
            next(ahead)
        other.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("small", [True, False], ids=["posted", "ordinary"])
def test_a_refused_push_that_nobody_asks_about_is_told_once(small: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that asks only for its last result trained on without a word."""
    with trained(shared_memory=small) as s:
        for scale in (1.0, np.nan, np.inf, 1.0):
            reply = s.push_async(ones(scale))
        assert reply.result().step == 2 and values(s) == (-2.0, -2.0)
        told = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
        assert len(told) == 1 and "the gradient of w has NaN" in told[0]


def test_a_refused_push_whose_result_is_asked_for_is_told_by_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    with trained() as s:
        for call in (s.push, s.step, lambda grads: s.push_async(grads).result()):
            with pytest.raises(ValueError, match="NaN"):
                call(ones(np.nan))  # type: ignore[operator]
        assert not [record for record in caplog.records if "was refused" in record.getMessage()]
