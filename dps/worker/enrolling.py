"""Joins a run by a token: makes a pair of keys, has the chief accept it, and keeps it in this process."""

from __future__ import annotations

import threading

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import DeadlineExceeded, NotAuthenticated, ProtocolError
from dps.run_protocol import ENROLMENT, Enrol, Enrolled
from dps.transport.current import runtime
from dps.transport.handshake import token_refused
from dps.transport.keys import Accepted, Credentials, KeyFolder, Keys, Pair, check_curve, hold, is_key
from dps.transport.roles import ROLES, TOKEN
from dps.transport.token import Token, parse_token

ENROL_S = 20.0
"""How long the chief may take to answer."""

_lock = threading.Lock()
_joined: dict[Token, tuple[str, str]] = {}


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


def _ask(token: Token, role: str) -> Keys:
    """The keys with which this process takes part: a pair that the chief accepts now, and the public ones of others."""
    check_curve()
    held = Keys({TOKEN: [Pair(token.public, token.secret)]}, {"chief": [token.chief_key]})
    folder = KeyFolder("the join token", held)
    own = Pair.new()
    caller = Caller(runtime(), f"a process on {runtime().place.host}", Credentials(folder, TOKEN, Accepted(folder)))
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
