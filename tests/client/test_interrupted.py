"""Ctrl-C at every line where a session joins again, and where results of pushes are accounted for. What it has told and
what the variables have stay the same, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.client.membership import Membership
from dps.client.transfers import Transfer
from dps.messages.replies import Push
from tests.client.test_at_once import ones, session, values
from tests.in_process import cluster
from tests.interrupting import at_some_lines, interrupted_at
from tests.tuned import RESENT_SOON, tune


@pytest.fixture(autouse=True)
def resent_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, **RESENT_SOON)


@pytest.mark.thinned
@pytest.mark.slow
@at_some_lines
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("update", ["async", "sync"])
def test_ctrl_c_while_a_session_joins_again(update: str, ps: int, shared: bool, every: int, tmp_path: Path) -> None:
    """Its pushes of before were not given up, and all later ones were late; or one was applied and told as not
    accepted."""
    about: Any = {"update": update, "checkpoint_dir": tmp_path / "run", "timeout": 20, "shared_memory": shared}
    calls: list[Callable[[dps.Session], Any]] = [
        lambda s: s.push(ones()).accepted, lambda s: s.push_async(ones()).result().accepted,
        lambda s: float(s.step(ones())["w"][0, 0]) == -2.0, lambda s: values(s) != (-1.0, -1.0),
    ]  # fmt: skip
    with cluster(ps, 1) as (server,), session(server, **about) as s:
        s.push(ones())
        name, line, reached = s.save(), 1, True
        while reached:
            before = [s.push_async(ones()) for _ in range(1 if update == "sync" else 2)]
            reached = interrupted_at(line, lambda: s.restore(name), since=Membership.next)
            accepted = calls[line % len(calls)](s)
            assert values(s) == 2 * (-1.0 - accepted,), f"at line {line}"
            assert s.push(ones()).accepted and values(s) == 2 * (-2.0 - accepted,), f"at line {line}"
            told = [reply.result().accepted for reply in before]
            assert told == sorted(told, reverse=True), f"at line {line}"  # accepted: its result was there before
            s.restore(name)
            line += every


@pytest.mark.thinned
@at_some_lines
@pytest.mark.parametrize("shared", [True, False], ids=["posted", "ordinary"])
@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("then", ["result", "rollback"])
def test_ctrl_c_while_results_are_accounted_for(
    update: str, shared: bool, then: str, every: int, tmp_path: Path
) -> None:  # fmt: skip
    """A push lost its result, or counted twice."""
    heard: list[int] = []

    class Hears(dps.Hook):
        def after_run(self, session: Any, result: Push, loss: Any) -> None:
            heard.append(result.step)

    about: Any = {"update": update, "checkpoint_dir": tmp_path / "run", "timeout": 20, "shared_memory": shared}
    with cluster(1, 1) as (server,), session(server, hooks=[Hears()], **about) as s:
        name = s.save()
        line, made, reached = 1, 0, True
        while reached:
            reply = s.push_async(ones())
            while not reply.done():
                s._connection.caller.turn(0.01)
            reached = interrupted_at(line, s._pushes.account)
            if then == "rollback":
                s.restore(name)
                heard.clear()
                made = 0
                assert not s._pushes.under_way and s._pushes.acknowledged == 0
                assert reply.result().step in (0, 1)
            else:
                made += 1
                assert reply.result() == Push(made, True, 0) and s._pushes.acknowledged == made
                assert s._connection.steps.local_step == made
            assert values(s) == (-made, -made)
            assert len(set(heard)) == len(heard), "a push was reported twice"
            line += every


@pytest.mark.thinned
@at_some_lines
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("call", ["push", "pull", "some", "lookup"])
def test_ctrl_c_leaves_no_request_that_nobody_waits_for(call: str, shared: bool, every: int) -> None:
    """It was sent again for ever, its late answer was written to the caller's memory, or one ps lacked a push."""
    out = np.zeros((2, 170), np.float32)
    calls: dict[str, Callable[[dps.Session], Any]] = {
        "push": lambda s: s.push(ones()), "pull": lambda s: s.pull(), "some": lambda s: s.pull(names=["w", "c"]),
        "lookup": lambda s: s.lookup("w", np.array([3, 1]), out=out),
    }  # fmt: skip
    tuned: Any = {"update": "async", "timeout": 20, "shared_memory": shared}
    with cluster(2, 1) as (server,), session(server, **tuned) as s:
        line, made, reached = 1, 0, True
        while reached:
            reached = interrupted_at(line, lambda: calls[call](s))
            assert call == "push" or not open_transfers(s), f"at line {line}"
            out[...] = 7.0
            s._pushes.drain()
            s._connection.caller.wait(open_transfers(s), 5.0)  # one may be sent again once more, if a ps was slow
            made += int(-values(s)[0]) - made
            assert values(s) == (-made, -made), f"at line {line}"
            assert (out == 7.0).all() and not open_transfers(s), f"at line {line}"
            line += every


def open_transfers(s: dps.Session) -> list[Transfer]:
    """What a session would send again."""
    requests = s._connection.caller._requests._open.values()
    return [request for request in requests if isinstance(request, Transfer) and not request.complete]
