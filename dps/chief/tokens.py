"""The join tokens of a run and the keys that have joined by them, as a state machine; and the file that keeps both.

No clock, no sockets. Times are seconds since 1970 on the chief's clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.messages.runs import MOST_USES
from dps.transport.keys.keyring import JoinedKey

ROLES = ("worker", "reader")
"""What a token may make of who joins."""
LONGEST_S = 30 * 86400.0
MOST, MOST_JOINED = 1000, 10_000
"""The most tokens that are known at one time, those that are over included, and the most keys that have joined."""
FORMAT = 1


@dataclass
class Issued:
    """A token that the chief has accepted."""

    role: str
    left: int
    """How many more keys it enrols."""
    until: float

    def problem(self, now: float) -> str:
        """Why it is not accepted; "" if it is."""
        if self.left <= 0:
            return f"its join token, for a {self.role}, is used up"
        if now >= self.until:
            return f"its join token, for a {self.role}, has expired"
        return ""


class JoinTokens:
    """The tokens of one run. `version` counts the changes of `joined`."""

    def __init__(self) -> None:
        self.issued: dict[bytes, Issued] = {}
        """By public key, the oldest first. Those that are over are kept, to say so in the log."""
        self.joined: dict[bytes, JoinedKey] = {}
        self._by: dict[bytes, bytes] = {}
        """The token by which each key has joined."""
        self.version = 0

    def issue(self, key: bytes, role: str, uses: int, ttl_s: float, now: float) -> str:
        """Accept a token; returns its role. A second call for the same one changes nothing. Raises ConfigError."""
        if role not in ROLES:
            raise ConfigError(f"got a token for a {role}; wanted one for a {' or a '.join(ROLES)}")
        if not 1 <= uses <= MOST_USES:
            raise ConfigError(f"got a token with {uses} uses, wanted 1 to {MOST_USES}")
        if not 0 < ttl_s <= LONGEST_S:
            raise ConfigError(f"got a token for {ttl_s:g} s, wanted more than 0 and at most 30 days")
        if len(self.issued) >= MOST and key not in self.issued:
            over = next((key for key, issued in self.issued.items() if issued.problem(now)), None)
            if over is None:
                raise ConfigError(f"there are {MOST} tokens that can still be used; wait until some have expired")
            del self.issued[over]
        return self.issued.setdefault(key, Issued(role, uses, now + ttl_s)).role

    def problem(self, key: bytes, now: float) -> str | None:
        """Why the token with this public key is not accepted; "" if it is, None for no token."""
        issued = self.issued.get(key)
        return None if issued is None else issued.problem(now)

    def enrol(self, token: bytes, key: bytes, under: Mapping[str, list[bytes]], now: float, wanted: str = "") -> str:
        """Use a token for a key; returns the key's role. A second call for the same key uses it no more. `under`: the
        public keys of each role, the newest first. Raises NotAuthenticated, and ConfigError for a token of another role
        than `wanted` ("": any)."""
        issued = self.issued.get(token)
        if issued is None:
            raise NotAuthenticated("this chief has made no such join token")
        if self._by.get(key) == token:
            return issued.role
        if problem := issued.problem(now):
            raise NotAuthenticated(problem)
        if key in self.joined or any(key in known for known in under.values()):
            raise NotAuthenticated("its key has joined by another token, or is a key of the run")
        if not under.get(issued.role) or len(self.joined) >= MOST_JOINED:
            raise NotAuthenticated(f"the run takes no more keys of a {issued.role}: {len(self.joined)} have joined")
        if wanted not in ("", issued.role):
            raise ConfigError(f"got a join token for a {issued.role}; wanted one that dps token --role {wanted} prints")
        issued.left -= 1
        self.joined[key], self._by[key] = JoinedKey(issued.role, b" ".join(under[issued.role])), token
        self.version += 1
        return issued.role

    # -- for a chief that is started again ----------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "version": self.version,
            "issued": [[key.decode(), i.role, i.left, i.until] for key, i in self.issued.items()],
            "joined": [
                [key.decode(), j.role, j.under.decode(), self._by[key].decode()] for key, j in self.joined.items()
            ],
        }  # fmt: skip

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> JoinTokens:
        """Raises KeyError, TypeError and ValueError for other values than those of `to_json`."""
        made = JoinTokens()
        if found["format"] != FORMAT:
            raise ValueError(f"got format {found['format']}, wanted {FORMAT}")
        made.version = int(found["version"])
        for key, role, left, until in found["issued"]:
            made.issued[key.encode()] = Issued(str(role), int(left), float(until))
        for key, role, under, token in found["joined"]:
            made.joined[key.encode()] = JoinedKey(str(role), under.encode())
            made._by[key.encode()] = token.encode()
        return made


class TokenFile:
    """The file of one chief in its folder of keys, mode 600. Calls block on the disk."""

    def __init__(self, folder: str, address: str) -> None:
        """`address`: the chief's, by which a chief that is started again finds what the one before it has written."""
        self.path = os.path.join(folder, f"tokens-{address.encode().hex()[-64:]}.json")

    def load(self) -> JoinTokens:
        """What was written last; no tokens if there is no file. Raises ConfigError if it cannot be read."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return JoinTokens()
        except OSError as error:
            raise ConfigError(f"cannot read the join tokens in {self.path}: {error.strerror}") from None
        try:
            with open(file, encoding="ascii") as text:
                return JoinTokens.from_json(json.load(text))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = "delete it; tasks that have joined by a token then need new ones"
            raise ConfigError(f"{self.path} holds no join tokens ({error!r}); {what}") from None

    def save(self, tokens: JoinTokens) -> None:
        """Replace it as a whole; on return it survives a power failure. Raises Unavailable."""
        part = f"{self.path}.part"
        try:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(file, "w", encoding="ascii") as out:
                json.dump(tokens.to_json(), out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, self.path)
        except OSError as error:
            raise Unavailable(
                f"the chief cannot write the join tokens to {self.path}: {error.strerror}; it must be able to write to "
                "its folder of keys"
            ) from None

    def remove(self) -> None:
        """The run is over: nobody needs what is in it."""
        try:
            os.unlink(self.path)
        except OSError:
            pass
