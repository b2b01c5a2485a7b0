"""Requests of an operator to a running chief: a join token (`dps token`), the end of the run (`dps kill ADDRESS`)."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.cluster.address import check_address
from dps.errors import ConfigError, DeadlineExceeded, DpsError, NotAuthenticated, Unavailable
from dps.launch.runs.times import duration
from dps.messages.runs import (
    CHIEF,
    ENROLMENT,
    GATHER,
    MOST_USES,
    OPEN,
    OPERATORS,
    AskCluster,
    AskStats,
    AskStatus,
    EndRun,
    MakeToken,
    Stats,
    TokenMade,
)
from dps.messages.sessions import PS
from dps.transport.clock import now, pause
from dps.transport.current import keys_for, runtime
from dps.transport.keys.keyring import Pair
from dps.transport.keys.token import JoinToken
from dps.transport.message import Message
from dps.worker.joining import find_chief

ASK_S = 1.0
ANSWER_S = 3.0
"""How long each answer of a cluster may take."""


def has_variables(chief: str) -> bool:
    """Whether the run has variables, so that readers can pull. False without an answer. Blocks up to 1 s."""
    with contextlib.closing(Caller(runtime(), "reader", keys_for(chief, "worker", "reader"))) as caller:
        try:
            answer = caller.ask(Ref(chief, CHIEF), AskStats(), ASK_S)
        except DpsError:
            return False
    assert isinstance(answer, Stats)
    return answer.values["phase"] not in (GATHER, OPEN)


class StatusClient:
    """Asks the tasks of one cluster for their counters, for an operator. Close it."""

    def __init__(self, chief: str, name: str, answer_s: float | None = None) -> None:
        self.address, self._answer_s = chief, ANSWER_S if answer_s is None else answer_s
        self._name, self._keys, self._found = name, keys_for(chief, "operator"), False
        self._caller = Caller(runtime(), name, self._keys)

    def ask_chief(self) -> dict[str, Any]:
        """What the chief says of itself. Raises DeadlineExceeded without an answer."""
        try:
            return self._ask_status(Ref(self.address, CHIEF))
        except (NotAuthenticated, Unavailable):  # it may be another task's address
            found = None if self._found else find_chief(runtime(), self.address, self._keys)
            if found is None:
                raise
            self.close()
            self._found, self.address = True, found.chief
            self._caller = Caller(runtime(), self._name, self._keys)
            return self.ask_chief()
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"no chief answered at {self.address} for {self._answer_s:g} s; is a run there? dps list has those of "
                "dps launch"
            ) from None

    def ask_ps(self, chief: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The report of each ps on itself, by its number, beside its address. `chief`: the chief's report."""
        found = {}
        for task, address in chief["cluster"].get("ps", {}).items():
            self._caller.expect(address, PS)
            try:
                values = self._ask_status(Ref(address, PS))
            except DpsError:
                values = {"state": "no answer"}
            found[task] = {"address": address, **values}
        return found

    def _ask_status(self, ref: Ref) -> dict[str, Any]:
        answer = self._caller.ask(ref, AskStatus(), self._answer_s)
        assert isinstance(answer, Stats)
        return answer.values

    def close(self) -> None:
        self._caller.close()


LOOK_S, AWAY_S = 0.2, 0.5
"""How often a chief is asked whether it is still there, and how long it may take until the connection is looked at."""


def make_token(chief: str, role: str, uses: int, ttl: str) -> JoinToken:
    """A new join token of a run. Only its public half goes to the chief."""
    if not 1 <= uses <= MOST_USES:
        raise ConfigError(f"got --uses {uses}; wanted 1 to {MOST_USES}")
    ttl_s = duration("--ttl", ttl)
    pair = Pair.new()
    answer = _ask_actor(chief, ENROLMENT, MakeToken(pair.public, role, uses, ttl_s))
    assert isinstance(answer, TokenMade), answer
    return JoinToken(answer.chief, answer.key, pair.secret)


def _ask_actor(chief: str, actor: str, message: Message, wants_keys: bool = True) -> Message:
    check_address(chief)
    keys = keys_for(chief, "operator")
    if keys is None and wants_keys:
        raise ConfigError(
            f"tokens are for runs with keys: got none for the chief at {chief}; give --keys DIR (DPS_KEYS), and start "
            "the chief with them"
        )
    with contextlib.closing(Caller(runtime(), "an operator", keys)) as caller:
        try:
            return caller.ask(Ref(chief, actor), message, ANSWER_S)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"no chief answered at {chief} for {ANSWER_S:g} s; is a run there?") from None


def end_run(chief: str, grace_s: float, silent_s: float, kill_s: float) -> None:
    """End the run of the chief at an address, in order; after `grace_s` without its last checkpoint. Blocks, and says
    so after `silent_s`. Raises DeadlineExceeded if the chief is still there `kill_s` later."""
    _ask_actor(chief, OPERATORS, EndRun("an operator ended the run", False), False)
    if _has_ended(chief, min(silent_s, grace_s)):
        return
    print(f"the run of {chief} is ending; it is ended at once after {grace_s:g} s", file=sys.stderr)
    if _has_ended(chief, grace_s - silent_s):
        return
    with contextlib.suppress(DeadlineExceeded, Unavailable):  # it has ended just now
        _ask_actor(chief, OPERATORS, EndRun("an operator ended the run", True), False)
    if not _has_ended(chief, kill_s):
        raise DeadlineExceeded(f"the chief at {chief} is still there {kill_s:g} s after it was told to end at once")


def _has_ended(chief: str, within_s: float) -> bool:
    """Whether the chief stops answering in time."""
    deadline = now() + within_s
    with contextlib.closing(Caller(runtime(), "an operator", keys_for(chief, "operator"))) as caller:
        while now() < deadline:
            try:
                caller.ask(Ref(chief, CHIEF), AskCluster(), AWAY_S)
            except (DeadlineExceeded, Unavailable):
                if chief in caller.away or chief not in caller.reached:
                    return True
            pause(LOOK_S)
    return False
