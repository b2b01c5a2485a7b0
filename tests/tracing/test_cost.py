"""While no trace is taken, a push runs not one bytecode for traces: on the worker, and on the ps."""

from __future__ import annotations

import sys
from collections import Counter as Counts
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import dps
from dps.ps.server import PsActor
from dps.tracing.gathering import TraceClient, TraceWish
from dps.transport.current import runtime
from tests.hooks.loops import ones, session
from tests.in_process import cluster
from tests.tracing.test_traces_of_runs import asking
from tests.tuned import tune

PUSHES = 40
VARIES = (
    "dps/actors/caller.py", "dps/actors/pausable_clock.py", "dps/transport/", "dps/process/telemetry.py",
    "dps/ps/intake/worker_times.py",
)  # fmt: skip
"""What waits, and what depends on the time."""

ON_THE_WAY = (
    "client/session.py::Session.push", "client/training.py::PsTraining.push",
    "client/training.py::PsTraining._gradients",
    "ps/server.py::PsActor.take_Push",
    "ps/store/store.py::Store.apply_update", "ps/shard.py::Shard.commit_push",
    "ps/store/draft.py::Draft.write", "ps/store/draft.py::Draft.publish",
)  # fmt: skip
"""What a trace taps, what calls it, and what it calls. What else runs depends on what other pushes have left behind."""


class Counter:
    """Counts the bytecodes of dps that run within a function, on the thread that calls `sys.settrace` with it."""

    def __init__(self, code: Any) -> None:
        self._code, self._counting = code, False
        self._now = Counts[str]()
        self.calls = 0
        self.totals: list[int] = []
        """How many bytecodes each call has run."""
        self.least: dict[str, int] = {}
        """How many bytecodes of each function run in the call with the fewest of them: it may be interrupted."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is self._code:
            self._counting = True
            self._now.clear()
        name = frame.f_code.co_filename
        if not self._counting or "/dps/" not in name or any(part in name for part in VARIES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if event == "opcode":
            self._now[f"{code.co_filename.rpartition('/dps/')[2]}::{code.co_qualname}"] += 1
        if event == "return" and code is self._code:
            self._counting = False
            self.calls += 1
            self.totals.append(sum(self._now.values()))
            for function, count in self._now.items():
                self.least[function] = min(self.least.get(function, count), count)
        return self._inside


def counted(server: Any, ps: Any, push: Callable[[], Any]) -> tuple[Counter, Counter]:
    """The bytecodes of pushes: of `Session.push` on this thread, and of the ps's handling on the node's."""
    own, other = Counter(dps.Session.push.__wrapped__.__code__), Counter(PsActor.take_Push.__code__)
    before = sys.gettrace()
    ps.node.post(lambda: sys.settrace(other))
    push()
    sys.settrace(own)
    try:
        for _ in range(PUSHES):
            push()
    finally:
        sys.settrace(before)
        ps.node.post(lambda: sys.settrace(None))
    push()
    assert own.calls >= PUSHES and other.calls >= PUSHES // 2
    assert "client/training.py::PsTraining.push" in own.least and "ps/server.py::PsActor.take_Push" in other.least
    return own, other


@pytest.mark.parametrize("update", ["async", "sync"])
def test_before_and_after_a_trace_a_push_runs_the_same_bytecodes_and_none_of_traces(
    update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, client__step_patience_s=5.0, client__probe_s=60.0)  # also on a busy machine it goes one way
    with cluster(update=update) as (server,), session(server) as s:
        actors = [actor for actor in nodes() if hasattr(actor, "shard")]
        (ps,) = [actor for actor in actors if actor.shard is not None and actor.shard.ledgers]

        def push() -> None:
            s.push(ones())

        push()
        before = counted(server, ps, push)
        with asking(server.target) as caller:
            made = TraceClient(runtime(), caller, server.target, TraceWish(10**6, 60))

            def during(tasks: list[str]) -> None:
                push()
                found = counted(server, ps, push)
                assert any(function.startswith("tracing/") for function in found[1].least)
                made.stopped = True

            made.take_trace(during)
        after = counted(server, ps, push)
        assert not set(ON_THE_WAY) - before[0].least.keys() - before[1].least.keys()
        for one, other in zip(before, after, strict=True):
            known = [function for function in ON_THE_WAY if function in one.least]
            assert known and {f: one.least[f] for f in known} == {f: other.least[f] for f in known}
            assert not any(function.startswith("tracing/") for function in one.least | other.least)


def nodes() -> list[Any]:
    """The actors of all nodes of this process."""
    from dps.task.served_task import serving

    return [actor for task in serving for actor in task._node.actors.values()]
