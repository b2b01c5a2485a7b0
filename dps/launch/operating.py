"""Requests of an operator to a running chief: a join token (`dps token`), the end of the run (`dps kill ADDRESS`)."""

from __future__ import annotations

import sys

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.chief.tokens import MOST_USES
from dps.cluster.address import check_address
from dps.errors import ConfigError, DeadlineExceeded, Unavailable
from dps.launch.asking import ANSWER_S
from dps.launch.runs.times import duration
from dps.run_protocol import CHIEF, ENROLMENT, OPERATORS, AskCluster, EndRun, MakeToken, TokenMade
from dps.transport.clock import now, pause
from dps.transport.current import keys_for, runtime
from dps.transport.keys import Pair
from dps.transport.message import Message
from dps.transport.token import Token

LOOK_S, AWAY_S = 0.2, 0.5
"""How often a chief is asked whether it is still there, and how long it may take until the connection is looked at."""


def make_token(chief: str, role: str, uses: int, ttl: str) -> Token:
    """A new join token of a run. Only its public half goes to the chief."""
    if not 1 <= uses <= MOST_USES:
        raise ConfigError(f"got --uses {uses}; wanted 1 to {MOST_USES}")
    ttl_s = duration("--ttl", ttl)
    pair = Pair.new()
    answer = _ask(chief, ENROLMENT, MakeToken(pair.public, role, uses, ttl_s))
    assert isinstance(answer, TokenMade), answer
    return Token(answer.chief, answer.key, pair.secret)


def _ask(chief: str, actor: str, message: Message, wants_keys: bool = True) -> Message:
    check_address(chief)
    keys = keys_for(chief, "operator")
    if keys is None and wants_keys:
        raise ConfigError(
            f"tokens are for runs with keys: got none for the chief at {chief}; give --keys DIR (DPS_KEYS), and start "
            "the chief with them"
        )
    caller = Caller(runtime(), "an operator", keys)
    try:
        return caller.ask(Ref(chief, actor), message, ANSWER_S)
    except DeadlineExceeded:
        raise DeadlineExceeded(f"no chief answered at {chief} for {ANSWER_S:g} s; is a run there?") from None
    finally:
        caller.close()


def end_run(chief: str, grace_s: float, silent_s: float, kill_s: float) -> None:
    """End the run of the chief at an address, in order; after `grace_s` without its last checkpoint. Blocks, and says
    so after `silent_s`. Raises DeadlineExceeded if the chief is still there `kill_s` later."""
    _ask(chief, OPERATORS, EndRun("an operator ended the run", False), False)
    if _ends(chief, min(silent_s, grace_s)):
        return
    print(f"the run of {chief} is ending; it is ended at once after {grace_s:g} s", file=sys.stderr)
    if _ends(chief, grace_s - silent_s):
        return
    _tell_now(chief)
    if not _ends(chief, kill_s):
        raise DeadlineExceeded(f"the chief at {chief} is still there {kill_s:g} s after it was told to end at once")


def _tell_now(chief: str) -> None:
    try:
        _ask(chief, OPERATORS, EndRun("an operator ended the run", True), False)
    except (DeadlineExceeded, Unavailable):  # it has ended just now
        pass


def _ends(chief: str, within_s: float) -> bool:
    """Whether the chief stops answering in time."""
    deadline = now() + within_s
    caller = Caller(runtime(), "an operator", keys_for(chief, "operator"))
    try:
        while now() < deadline:
            try:
                caller.ask(Ref(chief, CHIEF), AskCluster(), AWAY_S)
            except (DeadlineExceeded, Unavailable):
                if chief in caller.away or chief not in caller.reached:
                    return True
            pause(LOOK_S)
    finally:
        caller.close()
    return False
