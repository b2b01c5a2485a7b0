"""What a peer says of this machine's memory: nothing is read by its name before it has proven that it is here, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.answers import Done
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.client.lanes import Lane
from dps.errors import Unavailable
from dps.messages.sessions import SHARED, Probe, Probed, Pull, Push, Release, SharedValues
from dps.transport import shared_memory as probing
from dps.transport.current import runtime
from dps.transport.shared_memory import ASKED, ASKER, SharedMemory, expected, marked, proof
from tests.in_process import cluster

SIZE = 40_000


class Elsewhere:
    """A session that has not shared memory with the ps, and another connection of its process."""

    def __init__(self, chief: str, session: dps.Session) -> None:
        connection = session._connection
        self.chief, self.session, self.epoch, self.ps = (
            chief,
            session,
            connection.membership.epoch,
            connection.peers[0].ref,
        )
        self.nbytes = connection.agreed.plan.layouts[0].nbytes
        self.caller = Caller(runtime(), "worker:0", connection.home.keys)
        self.caller.incarnation = connection.caller.incarnation
        self.caller.expect(self.ps.address, "ps")
        self.caller.connect(self.ps.address, connection.home.ticket)

    def ask(self, message: Any) -> Any:
        return self.caller.ask(self.ps, message, 10.0)

    def push(self, memory: SharedMemory) -> Any:
        return self.ask(Push(self.epoch, 1, 0, 0, SHARED, self.nbytes, [], [memory.name, 0]))


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    values = {"a": np.zeros(SIZE, np.float32)}
    with (
        cluster(1, 1) as (server,),
        dps.Session(server, values, optimizer=dps.optim.SGD(1.0), shared_memory=False) as session,
    ):
        made = Elsewhere(server.target, session)
        yield made
        made.caller.close()
        assert session.push({"a": np.ones(SIZE, np.float32)}).accepted


def test_the_memory_of_a_process_that_has_proven_nothing_is_not_read(elsewhere: Elsewhere) -> None:
    memory = SharedMemory(elsewhere.nbytes)
    with pytest.raises(Unavailable, match="has not proven to be on this machine"):
        elsewhere.push(memory)
    own = marked(runtime())
    assert own is not None
    first = elsewhere.ask(Probe(own.name))
    assert first.proof == expected(own, ASKED, first.memory) and first.memory and not first.near and not first.direct
    with pytest.raises(Unavailable, match="has not proven"):
        elsewhere.push(memory)
    assert elsewhere.ask(Probe(own.name, proof(runtime(), first.memory, ASKER, own.name))).near
    assert elsewhere.push(memory).status == "applied"


def test_who_reads_nothing_here_proves_nothing_by_what_the_ps_says_to_it(elsewhere: Elsewhere) -> None:
    """It names its own memory, the ps's values, which begin with zeros, and what the ps is asked for by others."""
    own = marked(runtime())
    assert own is not None
    first = elsewhere.ask(Probe(own.name))
    lent = elsewhere.ask(Pull(elsewhere.epoch, 0, 0, 0, -1, [], shared=True))
    assert isinstance(lent, SharedValues)
    named = [own.name, lent.memories[0], first.memory]
    said = {b"", bytes(16), first.proof}
    for name in named:
        for each in tuple(said):
            answer = elsewhere.ask(Probe(name, each))
            said.add(answer.proof)
            assert not answer.near
    assert elsewhere.ask(Probe(lent.memories[0], bytes(16))).memory == []
    with pytest.raises(Unavailable, match="has not proven"):
        elsewhere.push(SharedMemory(elsewhere.nbytes))


def test_a_release_names_no_lease_of_another_session(elsewhere: Elsewhere) -> None:
    with dps.Session(elsewhere.chief, timeout=60) as reader, reader.view() as values:
        for first in range(1, 200, 20):
            elsewhere.ask(Release(elsewhere.epoch, list(range(first, first + 20))))
        for _ in range(6):
            assert elsewhere.session.push({"a": np.ones(SIZE, np.float32)}).accepted
        assert elsewhere.session.stats()["ps:0"]["leases"] == 1 and not values["a"].any()


class Ps:
    """A ps of somebody else, as a session's caller meets it: it answers as it likes."""

    direct = b"direct"

    def __init__(self, answer: Callable[[Probe], Any]) -> None:
        self.answer, self.paired = answer, False

    def start(self, to: Ref, message: Any, feed: Callable[[Any], bool], again: Callable[[], Any]) -> Any:
        feed(self.answer(again()))
        return self

    def pair(self, address: str, name: bytes) -> None:
        self.paired = True


FALSE: dict[str, Callable[[Probe], Any]] = {
    "the memory that it was asked to read": lambda probe: Probed(probe.memory, probe.proof, True, b"x"),
    "zeros": lambda probe: Probed(probe.memory, bytes(16), True, b"x"),
    "nothing": lambda probe: Probed([], b"", True, b"x"),
    "another answer": lambda probe: Done(),
}


@pytest.mark.parametrize("what", FALSE)
def test_a_session_reads_no_memory_for_a_ps_that_has_not_read_its_own(what: str) -> None:
    ps: Any = Ps(FALSE[what])
    lane = Lane(runtime(), ps, Ref("10.0.0.1:1", "ps"), 1, True)
    own = marked(runtime())
    assert own is not None
    lane.ask(own)
    assert not lane.on and not ps.paired


def test_what_a_ps_says_of_a_process_proves_nothing_for_another_memory(elsewhere: Elsewhere) -> None:
    """Somebody elsewhere has a ps read the memory of a process here, and takes its answer there as a ps of its own."""
    own, other = marked(runtime()), marked(runtime())
    assert own is not None and other is not None
    told = elsewhere.ask(Probe(own.name))
    assert told.proof and own.array[ASKED].tobytes() not in (told.proof, *told.memory)
    for memory, believed in ((told.memory, True), (other.name, False)):
        ps: Any = Ps(lambda probe, memory=memory: Probed(memory, told.proof, True, b"x"))  # type: ignore[misc]
        lane = Lane(runtime(), ps, Ref("10.0.0.1:1", "ps"), 1, True)
        lane.ask(own)
        assert lane.on == ps.paired == believed


def test_memory_that_was_not_made_to_be_asked_for_is_not_told() -> None:
    memory = SharedMemory(probing.NBYTES)
    assert proof(runtime(), memory.name, ASKED, []) == b""
    longer = SharedMemory(4096)
    longer.array[: len(probing.MARK)] = np.frombuffer(probing.MARK, np.uint8)
    malformed: Any = ["x"]
    assert proof(runtime(), longer.name, ASKED, []) == proof(runtime(), malformed, ASKED, []) == b""
