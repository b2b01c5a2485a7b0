"""A process of nobody's that knows all that a session sends, and claims to be that session, the chief and a ps."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.messages.runs import AGENT, CHIEF, CloseSession, Configure, Members, Restore, Save, StopTask
from dps.messages.sessions import PS, RUN, Push, Report
from dps.transport.current import runtime

ROUNDS, PAUSE_S = 60, 0.05


def forge(sessions: list[Any]) -> int:
    """Write to every task that the sessions know, under the numbers that they have at that moment."""
    caller = Caller(runtime(), "worker:0")
    for _ in range(ROUNDS):
        runtime().sleep(PAUSE_S)
        for session in sessions:
            _as_session(caller, session)
            _as_chief(caller, session)
    caller.close()
    return 0


def _as_session(caller: Caller, session: Any) -> None:
    connection, numbers = session._connection, session._pushes.numbers
    caller.incarnation = connection.caller.incarnation
    for ps, peer in connection.peers.items():
        nbytes, step = peer.layout.gradient_nbytes, connection.steps.step
        number = numbers.get(ps, 0) + 1
        values = np.zeros(nbytes, np.uint8)
        push = Push(connection.membership.epoch, number, step, 0, RUN, nbytes, [0], [], arrays=(values,))
        caller.post(peer.ref, push)
        caller.post(peer.ref, Report(connection.membership.epoch, ps, [[caller.incarnation, number, step, ""]]))
    chief, number = connection.chief, connection.number
    caller.post(chief, Restore(number, connection.membership.epoch, ""))
    caller.post(chief, Save(number))
    caller.post(chief, CloseSession(number, "forged", "worker", connection.home.task, "elsewhere"))


def _as_chief(caller: Caller, session: Any) -> None:
    connection = session._connection
    epoch = connection.membership.epoch
    for ps, peer in connection.peers.items():
        caller.post(peer.ref, Members(epoch, 1 << 60, [], [], [], 0))
        addresses = [[ps, peer.ref.address]]
        settings = connection.agreed.settings
        plan = connection.agreed.plan.to_wire()
        caller.post(Ref(peer.ref.address, PS), Configure(epoch + 1000, plan, ps, settings, addresses, "", ""))
        caller.post(Ref(peer.ref.address, AGENT), StopTask(7, "forged"))
    caller.post(Ref(connection.home.address, AGENT), StopTask(7, "forged"))
    assert connection.chief.actor == CHIEF
