"""Finds the chief of a run from outside of it, by the address of another task of the run."""

from __future__ import annotations

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import DpsError
from dps.run_protocol import AGENT, AskRun, RunIs
from dps.transport.address import seen_from
from dps.transport.endpoint import Runtime
from dps.transport.keys import Credentials
from dps.transport.roles import ANY_TASK

ANSWER_S = 2.0
"""How long the task may take to answer."""


def find_chief(runtime: Runtime, address: str, keys: Credentials | None) -> RunIs | None:
    """The chief of the run that the task at an address is of, and which task that is; None if there is none, or it does
    not answer. Blocks up to 2 s.

    What this process may do is not shown to the task, which may have any key of the run. Whoever uses the chief's
    address expects the chief's key there."""
    caller = Caller(runtime, "looks for the chief", keys)
    try:
        caller.expect(address, ANY_TASK)
        answer = caller.ask(Ref(address, AGENT), AskRun(), ANSWER_S)
        assert isinstance(answer, RunIs)
        chief = seen_from(address, answer.chief)
        return None if chief == address else RunIs(chief, answer.job, answer.task)
    except DpsError:
        return None
    finally:
        caller.close()
