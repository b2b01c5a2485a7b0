"""Joins a run by a token: makes a pair of keys, has the chief accept it, and keeps it in this process."""

from __future__ import annotations

import contextlib
import threading

from dps.actors.actor import Actor
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, ProtocolError
from dps.messages.runs import AGENT, ENROLMENT, AskJoined, AskRun, Enrol, Enrolled, JoinedKeys, RunIs
from dps.transport.current import runtime
from dps.transport.endpoint import Runtime
from dps.transport.keys.keyring import (
    AcceptedKeys,
    Credentials,
    JoinedKey,
    KeyFolder,
    Keys,
    Pair,
    check_curve,
    hold,
    is_key,
)
from dps.transport.keys.token import JoinToken, parse_token
from dps.transport.message import ANY_TASK, ROLES, TOKEN, Message
from dps.transport.sockets.addresses import seen_from
from dps.transport.sockets.handshake import token_refused

ENROL_S = 20.0
"""How long the chief may take to answer."""

_lock = threading.Lock()
_joined: dict[JoinToken, tuple[str, str]] = {}


def enrol(text: str, role: str = "") -> tuple[str, str]:
    """Use a join token; returns the chief's address, and what `dps.Server` and DPS_KEYS take as the keys of this
    process. A second call with the same token uses it no more. Blocks up to 20 s.

    Raises ConfigError for a text that is no token, and for a token of another role, which is not used ("": any role is
    right); NotAuthenticated if the chief does not accept it, and DeadlineExceeded if there is no chief."""
    token = parse_token(text)
    with _lock:
        if token not in _joined:
            name = f"the key that has joined {token.chief} by token {len(_joined) + 1}"
            hold(name, _ask(token, role))
            _joined[token] = token.chief, name
        return _joined[token]


def _ask(token: JoinToken, role: str) -> Keys:
    """The keys with which this process takes part: a pair that the chief accepts now, and the public ones of others."""
    check_curve()
    held = Keys({TOKEN: [Pair(token.public, token.secret)]}, {"chief": [token.chief_key]})
    folder = KeyFolder("the join token", held)
    own = Pair.new()
    caller = Caller(runtime(), f"a process on {runtime().place.host}", Credentials(folder, TOKEN, AcceptedKeys(folder)))
    try:
        answer = caller.ask(Ref(token.chief, ENROLMENT), Enrol(own.public, role), ENROL_S)
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"no chief answered at {token.chief}, where the join token says that it is, for {ENROL_S:.0f} s; is the "
            "run there still, and its port open?"
        ) from None
    except NotAuthenticated as error:
        if token.chief in str(error):  # it did not come to an answer: this side has found out
            raise
        raise NotAuthenticated(token_refused(token.chief)) from None
    finally:
        caller.close()
    if not isinstance(answer, Enrolled) or answer.role not in ROLES:
        raise ProtocolError(f"the chief at {token.chief} gave {answer!r:.80}; wanted Enrolled")
    public = {role: [key for key in keys if is_key(key)] for role, keys in answer.public.items() if role in ROLES}
    return Keys({answer.role: [own]}, public)


ANSWER_S = 2.0
"""How long the task may take to answer."""


def find_chief(runtime: Runtime, address: str, keys: Credentials | None) -> RunIs | None:
    """The chief of the run that the task at an address is of, and which task that is; None if there is none, or it does
    not answer. Blocks up to 2 s.

    What this process may do is not shown to the task, which may have any key of the run. Whoever uses the chief's
    address expects the chief's key there."""
    with contextlib.closing(Caller(runtime, "looks for the chief", keys)) as caller, contextlib.suppress(DpsError):
        caller.expect(address, ANY_TASK)
        answer = caller.ask(Ref(address, AGENT), AskRun(), ANSWER_S)
        assert isinstance(answer, RunIs)
        chief = seen_from(address, answer.chief)
        return None if chief == address else RunIs(chief, answer.job, answer.task)
    return None


ASK_S = 60.0
"""How long one request for news waits."""
AGAIN_S = 2.0
"""Pause after an error."""


class EnrolledKeys(Actor):
    """Asks the chief for news all the time. Answers come only over the connection to the chief's own key."""

    def __init__(self, chief: str, accepted: AcceptedKeys) -> None:
        self._chief, self._accepted = Ref(chief, ENROLMENT), accepted
        self._version = 0

    def started(self) -> None:
        self.node.ask(self._chief, AskJoined(self._version), ASK_S, self._handle_keys)

    def _handle_keys(self, answer: Message | Exception) -> None:
        if isinstance(answer, JoinedKeys):
            self._accepted.joined = {bytes(key): JoinedKey(str(role), bytes(under)) for key, role, under in answer.keys}
            self._version = answer.version
        if isinstance(answer, JoinedKeys | DeadlineExceeded):
            self.started()
        else:
            self.node.after(AGAIN_S, self.started)
