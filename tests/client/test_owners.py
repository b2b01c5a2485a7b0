"""Which ps a push, a lookup and a pull of some variables go to, counted message by message in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.ref import Sender
from dps.launch.commands.simulate import SimulatedCluster
from dps.messages.sessions import CountSteps
from dps.ps.server import PsActor
from dps.transport.message import Message
from dps.transport.sim import Network

LATENCY_S = 0.01
PS = 3
ONES = np.ones(4, np.float32)


class Heard:
    """The messages that the ps handle, by ps, while somebody listens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[str, str, Message]] = []
        """The ps, who sent it, and the message."""
        handle: Any = PsActor.handle

        def heard(actor: PsActor, message: Message, sender: Sender) -> None:
            self.messages.append((actor.node.name, sender.name, message))
            handle(actor, message, sender)

        monkeypatch.setattr(PsActor, "handle", heard)

    @contextmanager
    def by(self, sender: str) -> Iterator[dict[str, list[str]]]:
        """The names of the messages of one sender in the block, by ps."""
        found: dict[str, list[str]] = {}
        self.messages.clear()
        yield found
        for ps, name, message in self.messages:
            if name == sender:
                found.setdefault(ps, []).append(type(message).__name__)


def params() -> dict[str, Any]:
    """A variable on each ps, and a table with two rows on each."""
    table = dps.Variable(np.zeros((2 * PS, 2), np.float32), sparse=True)
    return {**{f"v{i}": np.zeros(4, np.float32) for i in range(PS)}, "table": table}


def rows(*numbers: int) -> dict[str, Any]:
    return {"table": dps.Rows(np.array(numbers), np.full((len(numbers), 2), -1.0, np.float32))}


def simulated(
    train: Callable[[Any, Any], None], update: Any, monkeypatch: pytest.MonkeyPatch, optimizer: Any = None
) -> None:  # fmt: skip
    """Run a program with a session and what the ps hear, on one worker and three ps."""
    heard = Heard(monkeypatch)

    def program(server: Any) -> None:
        with dps.Session(
            server, params(), optimizer=optimizer or dps.optim.SGD(1.0), timeout=60,
            partitioner=lambda shape, dtype: PS if len(shape) > 1 else 1,
        ) as session:  # fmt: skip
            train(session, heard)

    with SimulatedCluster(program, ps=PS, update=update, network=Network(latency_s=LATENCY_S)) as cluster:
        outcome = cluster.run(60.0)
        assert not outcome.errors and outcome.exit_codes["worker:0"] == 0


def owner(session: Any, name: str, row: int = 0) -> str:
    """The ps that has a variable, or a row of it."""
    plan = session._connection.agreed.plan
    parts = plan.parts_of[plan.by_name[name]]
    return next(f"ps:{p.ps}" for p in parts if p.row0 <= row < p.row0 + p.shape[0])


def test_a_push_of_what_is_on_one_ps_sends_nothing_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: dps.Session, heard: Heard) -> None:
        for name, given, row in (("table", rows(4), 4), ("table", rows(0, 1), 0), ("v2", {"v2": ONES}, 0)):
            with heard.by("worker:0") as found:
                assert session.push(given).accepted
            assert found == {owner(session, name, row): ["Push"]}

    simulated(train, dps.Async(), monkeypatch)


def test_lookups_and_pushes_of_several_ps_travel_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: dps.Session, heard: Heard) -> None:
        there = [owner(session, "table", row) for row in (2, 5)]
        assert len(set(there)) == 2
        for call, what in (
            (lambda: session.push(rows(2, 5)), "Push"),
            (lambda: session.lookup("table", [2, 5]), "Lookup"),
        ):
            began = session.runtime.now()
            with heard.by("worker:0") as found:
                call()
            assert found == {ps: [what] for ps in there}
            assert session.runtime.now() - began < 3 * LATENCY_S  # one after the other takes four ways

    simulated(train, dps.Async(), monkeypatch)


def test_counts_are_told_in_batches_and_the_step_is_that_of_all_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: dps.Session, heard: Heard) -> None:
        ps = owner(session, "v1")
        with heard.by(ps) as found:
            replies = [session.push_async({"v1": ONES}) for _ in range(40)]
            steps = [reply.result().step for reply in replies]
            session.runtime.sleep(1.0)
            told = [m for _, name, m in heard.messages if name == ps and isinstance(m, CountSteps)]
        assert sorted(steps) == steps and steps[-1] == session.global_step == 40
        assert found == {owner(session, "v0"): ["CountSteps"] * len(told)} and len(told) < 20
        assert told[-1].pushes == 40
        own = {name: of["sessions"]["worker:0"] for name, of in session.stats().items() if name != "chief"}
        assert [of["counted"] for of in own.values()] == [40 * (name == ps) for name in own]
        assert [name for name, of in own.items() if "times" in of] == [ps]
        session.push({"v1": ONES})
        session.pull()
        assert session.push({"v0": ONES}).step == 42 == session.stats()["ps:0"]["step"]

    simulated(train, dps.Async(), monkeypatch)


def test_a_rate_on_the_ps_of_the_global_step_is_that_of_the_step_that_the_pushing_session_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was that of the pushes of which the step ps had been told, so a result depended on timing."""

    def train(session: dps.Session, heard: Heard) -> None:
        assert owner(session, "v0") == "ps:0" != owner(session, "v1") and owner(session, "table", 0) == "ps:0"
        for _ in range(3):
            assert session.push({"v1": ONES}).accepted
        before = session.pull()
        session.push({"v0": ONES})
        session.push({"v1": ONES})
        session.push(rows(0))
        after = session.pull()
        assert (before["v0"] - after["v0"]).tolist() == [0.125] * len(ONES)
        assert (before["v1"] - after["v1"]).tolist() == [0.125] * len(ONES)
        assert (after["table"] - before["table"])[0].tolist() == [0.125, 0.125]
        assert session.global_step == 6

    simulated(train, dps.Async(), monkeypatch, dps.optim.SGD(dps.optim.Piecewise([2], [1.0, 0.125])))


@pytest.mark.parametrize("update", [dps.Bounded(1), dps.SyncReplicas()])
def test_where_the_step_ps_decides_with_them_it_gets_all_pushes(update: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: dps.Session, heard: Heard) -> None:
        with heard.by("worker:0") as found:
            assert session.push({"v1": ONES}).step == 1
        wanted = {"ps:0", owner(session, "v1")} if isinstance(update, dps.Bounded) else {"ps:0", "ps:1", "ps:2"}
        assert found == {ps: ["Push"] for ps in wanted}

    simulated(train, update, monkeypatch)


def test_a_push_of_nothing_counts_at_the_step_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: dps.Session, heard: Heard) -> None:
        with heard.by("worker:0") as found:
            assert session.push({}).step == 1
        assert found == {"ps:0": ["Push"]}

    simulated(train, dps.Async(), monkeypatch)
