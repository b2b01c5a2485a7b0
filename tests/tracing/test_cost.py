"""While no trace is taken, a push runs not one bytecode for traces: on the worker, and on the ps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import dps
from dps.messages.sessions import Push
from dps.tracing.gathering import TraceClient, TraceWish
from dps.transport.current import runtime
from tests.hooks.loops import ones, session
from tests.in_process import cluster
from tests.tracing.test_traces_of_runs import asking

PUSHES = 40
WAITS = ("dps/actors/caller.py", "dps/actors/pausable_clock.py", "dps/transport/")
"""What runs for as long as it takes, which is another number of bytecodes each time."""


class Counter:
    """Counts the bytecodes of dps that run within a function, on the thread that calls `sys.settrace` with it. On a
    node only while it handles a push."""

    def __init__(self, code: Any) -> None:
        self._code, self._counting, self._count = code, False, 0
        self.counts: list[int] = []
        self.files: set[str] = set()

    @property
    def usual(self) -> int:
        """The count of a call that nothing has interrupted."""
        return min(self.counts)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is self._code:
            envelope = frame.f_locals.get("envelope")
            self._counting, self._count = envelope is None or isinstance(envelope.message, Push), 0
        name = frame.f_code.co_filename
        if not self._counting or "/dps/" not in name or any(part in name for part in WAITS):
            return None
        self.files.add(name.rpartition("/dps/")[2])
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._count += event == "opcode"
        if event == "return" and frame.f_code is self._code:
            self._counting = False
            self.counts.append(self._count)
        return self._inside


def counted(server: Any, ps: Any, push: Callable[[], Any]) -> tuple[Counter, Counter]:
    """The bytecodes of pushes: of `Session.push` on this thread, and of the ps's handling on the node's."""
    own, other = Counter(dps.Session.push.__wrapped__.__code__), Counter(type(ps.node)._hand_over.__code__)
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
    assert len(own.counts) >= PUSHES and len(other.counts) >= PUSHES // 2
    return own, other


@pytest.mark.parametrize("update", ["async", "sync"])
def test_before_and_after_a_trace_a_push_runs_the_same_bytecodes_and_none_of_traces(update: str) -> None:
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
                assert found[1].usual > before[1].usual
                assert any(file.startswith("tracing/") for file in found[1].files)
                made.stopped = True

            made.take_trace(during)
        after = counted(server, ps, push)
        for one, other in zip(before, after, strict=True):
            assert one.usual == other.usual
            assert not any(file.startswith("tracing/") for file in one.files | other.files)


def nodes() -> list[Any]:
    """The actors of all nodes of this process."""
    from dps.task.served_task import serving

    return [actor for task in serving for actor in task._node.actors.values()]
