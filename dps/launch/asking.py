"""Asks a launched cluster's chief questions from outside any session."""

from __future__ import annotations

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.chief.phase import GATHER, OPEN
from dps.errors import DpsError
from dps.run_protocol import CHIEF, AskStats, Stats
from dps.transport.current import environment_keys, runtime

ASK_S = 1.0


def has_variables(chief: str) -> bool:
    """Whether the run has variables, so that readers can pull. False without an answer. Blocks up to 1 s."""
    caller = Caller(runtime(), "reader", environment_keys("operator", "worker", "reader"))
    try:
        answer = caller.ask(Ref(chief, CHIEF), AskStats(), ASK_S)
    except DpsError:
        return False
    finally:
        caller.close()
    return isinstance(answer, Stats) and answer.values["phase"] not in (GATHER, OPEN)
