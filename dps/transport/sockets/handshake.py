"""Tries the keys of a connection in turn, and explains why the two ends do not agree."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum

import zmq

from dps.transport.keys.files import is_own
from dps.transport.keys.keyring import Credentials, Pair, missing, missing_public
from dps.transport.message import TOKEN
from dps.transport.sockets.addresses import of_url

_SILENT = int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
"""The listener closed the connection without a word. After all other failures libzmq does not connect again."""
_REFUSED = int(zmq.Event.HANDSHAKE_FAILED_AUTH)
GREETING_S = 1.0
"""How long a listener may take to say which mechanism it speaks."""
SILENCES = 3
"""How often a listener closes a connection without a word before it is asked what it speaks. One that is restarted does
so, too, but not often in a row."""
SETTLED_S = 5.0
"""How long a listener that this side has been connected to may use another key: one that is started again begins with
the oldest pair of its folder, until the chief refuses it."""
AGAIN_S = 1.0
"""How long after a refusal a connection is tried again, if somebody sends to it; and how often a listener is asked what
it speaks."""

TRUSTS = ", or --trusted-network (DPS_TRUSTED_NETWORK=1) if it was started with that"
OTHERS = "if it was started with --keys DIR, give the same (DPS_KEYS, keys=)"
"""The advice for a peer that does not have the user's own keys."""

NEW_TOKEN = "for a new one, where the operator's key is: dps token --chief {}"

Choice = tuple[Pair, bytes]
"""An own pair, and the public key that the listener should have."""


class Step(Enum):
    """The next action of a connection after a failed handshake."""

    WAIT = "wait"
    """libzmq connects again by itself."""
    CLOSE = "close"
    """libzmq does not, so the next message has to open a new socket."""
    NEXT = "next"
    """Try the next keys, on a new socket."""
    REFUSED = "refused"


class Handshake:
    """The attempts of one connection. With two sets of keys, either end may use the older or the newer one."""

    def __init__(self, address: str, user: str, keys: Credentials | None) -> None:
        """`user`: the listener, as `Accepted.user` names it."""
        self._address, self._user, self._keys = address, user, keys
        self._role = user.partition(" ")[0]
        self._attempt = self._failures = 0
        """The keys that are tried now, and how many attempts have failed since the last successful one."""
        self._rejected: set[bytes] = set()
        """The own public keys that the listener has refused since then."""
        self._chosen: Choice | None = None
        self._again_at = 0.0
        self._settled_at = 0.0
        """Until when another key of the listener is no refusal; infinite since the two ends have agreed."""
        self.reason = ""
        """Why the connection is refused."""
        self.events: list[int] = []
        """The failed handshakes that nobody has looked at yet, as events of libzmq's monitor."""

    def _choices(self) -> list[Choice]:
        """Those that are left to try; an own key that the listener has refused is not."""
        assert self._keys is not None
        own = [pair for pair in self._keys.pairs if pair.public not in self._rejected]
        return [(pair, server) for server in self._keys.servers(self._user) for pair in own]

    def choice(self) -> Choice | None:
        """The keys to use now; None without keys. Only where there are some (`is_lacking_keys`)."""
        if self._keys is not None:
            choices = self._choices()
            self._chosen = choices[self._attempt % len(choices)]
        return self._chosen

    @property
    def is_stale(self) -> bool:
        """Whether the last `choice` is of keys that are gone."""
        if self._keys is None or self._chosen is None:
            return self._keys is not None
        own, server = self._chosen
        return own not in self._keys.pairs or server not in self._keys.servers(self._user)

    def is_lacking_keys(self) -> bool:
        """Whether there are no keys to use. Then `reason` says what is missing."""
        if self._keys is None:
            return False
        lacks = missing(self._keys.folder, self._keys.role) if not self._keys.pairs else ""
        if not lacks and not self._keys.servers(self._user):
            lacks = missing_public(self._keys.folder, self._role)
        if lacks:
            self.reason = f"{self._whom()} cannot be connected to: {lacks}"
        elif not self._choices():  # the only key that was not refused is gone
            self._rejected.clear()
        return bool(lacks)

    def failed(self, event: int, url: str, explained: Callable[[], None]) -> Step:
        """A handshake failed with this event of libzmq's monitor. `explained` is called on another thread, if it is
        found out there that the listener refuses the keys."""
        if event == _REFUSED and self._chosen is not None:
            return self._key_refused(self._chosen[0])
        if self._settled_at == math.inf:
            self._settled_at = time.monotonic() + SETTLED_S
        self._failures += 1
        choices = 1 if self._keys is None else max(1, len(self._choices()))
        if self._failures % choices:
            self._attempt += 1
            return Step.NEXT
        silent = self._failures >= SILENCES * choices and time.monotonic() >= self._settled_at
        if (event != _SILENT or silent) and self.may_retry:
            if self._keys is not None and self._keys.folder.changed():  # the listener has looked there earlier
                return Step.NEXT
            self.delay_retry()
            self._ask(url, explained)
        return Step.WAIT if event == _SILENT else Step.CLOSE

    def _key_refused(self, own: Pair) -> Step:
        """The listener does not know this own key (any more). What the chief refuses, nobody should be used to."""
        assert self._keys is not None
        self._attempt = self._failures = 0
        self._rejected.add(own.public)
        if self._role == "chief":
            self._keys.folder.refused.add(own.public)
        if self._choices() or self._keys.folder.changed():
            return Step.NEXT
        self._rejected.clear()
        self.reason = self._unknown()
        return Step.REFUSED

    def succeeded(self) -> None:
        """The two ends agree, on the keys of the last `choice`."""
        self._failures = 0
        self._settled_at = math.inf
        self._rejected.clear()

    def delay_retry(self) -> None:
        """Note that the connection is closed, until `may_retry`."""
        self._again_at = time.monotonic() + AGAIN_S

    @property
    def may_retry(self) -> bool:
        """Whether a refused connection may be tried again."""
        return time.monotonic() >= self._again_at

    def _ask(self, url: str, explained: Callable[[], None]) -> None:
        """Find out what the listener speaks. It closed the connection because of its keys, or for another reason."""

        def run() -> None:
            if reason := self._why(mechanism(url)):
                self.reason = reason
                explained()

        threading.Thread(target=run, name="dps asks what a listener speaks", daemon=True).start()

    def _why(self, spoken: str) -> str:
        if self._keys is None:
            return f"{self._whom()} wants keys; give --keys DIR (DPS_KEYS, keys=)" if spoken == "CURVE" else ""
        path = self._keys.folder.path
        if spoken == "NULL":
            both = f"give both the same{TRUSTS if is_own(path) else ''}"
            return f"{self._whom()} has no keys, this side has those of {path}; {both}"
        if spoken == "CURVE":
            other = f"{self._whom()} has another key than the {self._role} of {path}; "
            if self._keys.role == TOKEN:
                return other + f"this is another run, or its key was revoked; {NEW_TOKEN.format(self._address)}"
            same = f"is it of the same keys (as exported last), and is the address that of a {self._role}?"
            return other + (OTHERS if is_own(path) else same)
        return ""

    def _unknown(self) -> str:
        assert self._keys is not None
        role, path = self._keys.role, self._keys.folder.path
        if role == TOKEN:
            return token_refused(self._address)
        if self._keys.folder.held:
            return f"{self._whom()} refuses the key that has joined by a token: it was revoked, or the run has ended"
        return (
            f"{self._whom()} refuses the key of {role} in {path}: it does not know it, or it was revoked; "
            f"where all keys are: dps keys export DIR --role {role} OUT"
        )

    def _whom(self) -> str:
        return f"the {self._role} at {self._address}" if self._keys is not None else f"who listens at {self._address}"


def token_refused(chief: str) -> str:
    """The message for a peer whose token the chief at an address does not accept, whatever the reason."""
    return (
        f"the chief at {chief} does not accept this token: it is wrong, used up or has expired; "
        f"{NEW_TOKEN.format(chief)}"
    )


def mechanism(url: str) -> str:
    """The mechanism of ZMTP that the listener at a URL speaks, "NULL" or "CURVE"; "" if it does not say. Blocks up to
    GREETING_S twice."""
    at = of_url(url)
    family = socket.AF_UNIX if at.scheme == "ipc" else socket.AF_INET6 if ":" in at.host else socket.AF_INET
    got = b""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(GREETING_S)
            probe.connect(at.path if at.scheme == "ipc" else (at.host, at.port))
            probe.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03")  # the signature and the major version; it answers the rest
            while len(got) < 32 and (more := probe.recv(64)):
                got += more
    except OSError:
        pass
    return got[12:32].rstrip(b"\0").decode("ascii", "replace") if len(got) >= 32 and got[0] == 0xFF else ""
