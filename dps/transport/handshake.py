"""The keys that a connection tries in turn, and what to say if the two ends do not agree."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from enum import Enum

import zmq

from dps.transport.address import parse
from dps.transport.keys import Credentials, Pair
from dps.transport.own_keys import is_own
from dps.transport.roles import TOKEN

_SILENT = int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
"""The listener closed the connection without a word. After all other failures libzmq does not connect again."""
_REFUSED = int(zmq.Event.HANDSHAKE_FAILED_AUTH)
GREETING_S = 1.0
"""How long a listener may take to say which mechanism it speaks."""
SILENCES = 3
"""How often a listener closes a connection without a word before it is asked what it speaks. One that is restarted does
so, too, but not often in a row."""
AGAIN_S = 1.0
"""How long after a refusal a connection is tried again, if somebody sends to it; and how often a listener is asked what
it speaks."""

TRUSTS = ", or --trusted-network (DPS_TRUSTED_NETWORK=1) if it was started with that"
OTHERS = "if it was started with --keys DIR, give the same (DPS_KEYS, keys=)"
"""What to try for a peer that has not the user's own keys."""

Choice = tuple[Pair, bytes]
"""An own pair, and the public key that the listener should have."""


class Step(Enum):
    """What a connection does after a failed handshake."""

    WAIT = "wait"
    """libzmq connects again by itself."""
    CLOSE = "close"
    """libzmq does not, so the next message has to open a new socket."""
    NEXT = "next"
    """Try the next keys, on a new socket."""
    REFUSED = "refused"


class Handshake:
    """The attempts of one connection. With two sets of keys, each end may still have the older one."""

    def __init__(self, address: str, user: str, keys: Credentials | None) -> None:
        """`user`: the listener, as `Accepted.user` names it."""
        self._address, self._user, self._keys = address, user, keys
        self._role = user.partition(" ")[0]
        self._attempt = self._failures = 0
        """Which keys are tried now; how many attempts have failed since the last one that did not."""
        self._rejected = False
        """Whether the listener has refused one of the own keys since then."""
        self._again_at = 0.0
        self.reason = ""
        """Why the connection is refused."""
        self.events: list[int] = []
        """The failed handshakes that nobody has looked at yet, as events of libzmq's monitor."""

    def _choices(self) -> list[Choice]:
        assert self._keys is not None
        return [(own, server) for server in self._keys.servers(self._user) for own in self._keys.pairs]

    def choice(self) -> Choice | None:
        """The keys to use now; None without keys. Sets `reason` if there are none to use."""
        if self._keys is None:
            return None
        choices = self._choices()
        if not choices:
            self.reason = self._missing()
            return None
        return choices[self._attempt % len(choices)]

    @property
    def usable(self) -> bool:
        """Whether there are keys to use, or none are needed."""
        return self._keys is None or bool(self._choices())

    def failed(self, event: int, url: str, explained: Callable[[], None]) -> Step:
        """A handshake failed with this event of libzmq's monitor. `explained` is called on another thread, if it is
        found out there that the listener refuses the keys."""
        self._failures += 1
        self._rejected |= event == _REFUSED
        choices = 1 if self._keys is None else max(1, len(self._choices()))
        if self._failures % choices:
            self._attempt += 1
            return Step.NEXT
        if self._rejected:
            self.reason, self._rejected = self._unknown(), False
            return Step.REFUSED
        if (event != _SILENT or self._failures >= SILENCES * choices) and self.again:
            self.pause()
            self._ask(url, explained)
        return Step.WAIT if event == _SILENT else Step.CLOSE

    def succeeded(self) -> None:
        """The two ends agree, on the keys of the last `choice`."""
        self._failures, self._rejected = 0, False

    def pause(self) -> None:
        """Note that the connection is closed, until `again`."""
        self._again_at = time.monotonic() + AGAIN_S

    @property
    def again(self) -> bool:
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
            same = f"is it of the same keys, and is the address that of a {self._role}?"
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

    def _missing(self) -> str:
        assert self._keys is not None
        lacks = f"private key of {self._keys.role}" if not self._keys.pairs else f"public key of {self._role}"
        return f"{self._whom()} cannot be connected to: {self._keys.folder.path} has no {lacks} (any more)"

    def _whom(self) -> str:
        return f"the {self._role} at {self._address}" if self._keys is not None else f"who listens at {self._address}"


def token_refused(chief: str) -> str:
    """What a peer is told of a token that the chief at an address does not accept, whatever the reason."""
    return (
        f"the chief at {chief} does not accept this token: it is wrong, used up or has expired; for a new one, where "
        f"the operator's key is: dps token --chief {chief}"
    )


def mechanism(url: str) -> str:
    """The mechanism of ZMTP that the listener at a URL speaks, "NULL" or "CURVE"; "" if it does not say. Blocks up to
    GREETING_S twice."""
    at = parse(url)
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
