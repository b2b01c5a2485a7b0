"""Asks a cluster's chief and ps questions from outside any session."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.chief.phase import GATHER, OPEN
from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, Unavailable
from dps.protocol import PS
from dps.run_protocol import CHIEF, AskStats, AskStatus, Stats
from dps.transport.current import keys_for, runtime
from dps.worker.finding import find_chief

ASK_S = 1.0
ANSWER_S = 3.0
"""How long each answer of a cluster may take."""


def has_variables(chief: str) -> bool:
    """Whether the run has variables, so that readers can pull. False without an answer. Blocks up to 1 s."""
    caller = Caller(runtime(), "reader", keys_for(chief, "worker", "reader"))
    try:
        answer = caller.ask(Ref(chief, CHIEF), AskStats(), ASK_S)
        assert isinstance(answer, Stats)
        return answer.values["phase"] not in (GATHER, OPEN)
    except DpsError:
        return False
    finally:
        caller.close()


class Asking:
    """Asks the tasks of one cluster for their counters, for an operator. Close it, or use it in a with block."""

    def __init__(self, chief: str, name: str, answer_s: float | None = None) -> None:
        self.address, self._answer_s = chief, ANSWER_S if answer_s is None else answer_s
        self._name, self._keys, self._found = name, keys_for(chief, "operator"), False
        self._caller = Caller(runtime(), name, self._keys)

    def chief(self) -> dict[str, Any]:
        """What the chief says of itself. Raises DeadlineExceeded without an answer."""
        try:
            return self._ask(Ref(self.address, CHIEF))
        except (NotAuthenticated, Unavailable):  # it may be another task's address
            found = None if self._found else find_chief(runtime(), self.address, self._keys)
            if found is None:
                raise
            self.close()
            self._found, self.address = True, found.chief
            self._caller = Caller(runtime(), self._name, self._keys)
            return self.chief()
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"no chief answered at {self.address} for {self._answer_s:g} s; is a run there? dps list has those of "
                "dps launch"
            ) from None

    def ps(self, chief: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The report of each ps on itself, by its number, beside its address. `chief`: the chief's report."""
        found = {}
        for task, address in chief["cluster"].get("ps", {}).items():
            self._caller.expect(address, PS)
            try:
                values = self._ask(Ref(address, PS))
            except DpsError:
                values = {"state": "no answer"}
            found[task] = {"address": address, **values}
        return found

    def _ask(self, ref: Ref) -> dict[str, Any]:
        answer = self._caller.ask(ref, AskStatus(), self._answer_s)
        assert isinstance(answer, Stats)
        return answer.values

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
