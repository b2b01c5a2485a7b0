"""Reads a folder of keys: a pair for each role that this machine may have, and the public keys of all roles.

`worker-1.key` is the private key of a role in the first set, `worker-1.pub` its public key: 40 characters of Z85 each.
All sets that are there are accepted. The oldest is used, since every host has it until it is revoked.
`key_files.py` writes such folders.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import zmq

from dps.errors import ConfigError, DpsError, NotAuthenticated
from dps.process.record import record
from dps.process.telemetry import log
from dps.transport.message import ANY_TASK, CHIEF_ONLY, ROLES, TASKS, TOKEN

FILE = re.compile(rf"({'|'.join(ROLES)})-([1-9][0-9]{{0,8}})\.(key|pub)")
_Z85 = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_PRIVATE, _WRITABLE = 0o077, 0o022
"""Bits of a mode that others must not have: on a folder and a private key, and on a public key."""
LATE_S = 3.0
"""How much longer a revoked key is expected of a listener. Each process looks at its folder by itself, so the listener
may learn up to 2 s later that it has to use the next pair."""


class Pair(NamedTuple):
    """A private key and its public one, each in Z85."""

    public: bytes
    secret: bytes

    @staticmethod
    def new() -> Pair:
        """A pair that nobody has yet."""
        return Pair(*zmq.curve_keypair())


@record
class Keys:
    """The keys of a folder, by role; the newest set first."""

    pairs: dict[str, list[Pair]]
    public: dict[str, list[bytes]]

    def role_of(self, public: bytes) -> str:
        """The role of a public key; "" if none has it."""
        return next((role for role, known in self.public.items() if public in known), "")

    def all(self) -> set[tuple[str, bytes]]:
        """Each public and each private key, with its role."""
        public = {(role, key) for role, known in self.public.items() for key in known}
        return public | {(role, pair.secret) for role, pairs in self.pairs.items() for pair in pairs}


def check_curve() -> None:
    """Raise ConfigError if libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise ConfigError(
            f"this libzmq ({zmq.zmq_version()}) has no CURVE, so keys cannot be used; that of pip install pyzmq has it"
        )


def read(path: str, roles: Sequence[str] = ()) -> Keys:
    """The keys of a folder. `roles`: of the task that wants them, for the advice where there are none.

    Raises ConfigError if it is no folder of keys, and NotAuthenticated for a file that others may read or replace."""
    folder = _opened(path, os.O_DIRECTORY, _advice(path, roles))
    try:
        found = [match for name in os.listdir(folder) if (match := FILE.fullmatch(name))]
        if not found:  # said before its mode is looked at: nobody should chmod a folder of something else
            raise ConfigError(f"{path} has no keys; {_advice(path, roles)}")
        _check(path, os.fstat(folder), _PRIVATE, "700")
        pairs: dict[str, list[Pair]] = {}
        public: dict[str, list[bytes]] = {}
        for match in sorted(found, key=lambda match: -int(match[2])):
            name, role, _, kind = match.group(0, 1, 2, 3)
            key = _key(os.path.join(path, name), name, folder, _PRIVATE if kind == "key" else _WRITABLE)
            if kind == "key":
                pairs.setdefault(role, []).append(Pair(zmq.curve_public(key), key))
            else:
                public.setdefault(role, []).append(key)
    finally:
        os.close(folder)
    return Keys(pairs, public)


def _advice(path: str, roles: Sequence[str]) -> str:
    """How to get the keys for a task of these roles. A new folder would have keys of no other task."""
    if not roles:
        return "wanted a folder that dps keys new or dps keys export has made"
    export = f"where all keys of the run are: dps keys export DIR --role {roles[0]} OUT, and copy OUT here"
    if "chief" in roles:
        return f"for a new run make a folder of keys with: dps keys new {path}; or {export}"
    return export + (", or join by a token (dps token)" if roles[0] in ("worker", "reader") else "")


def _opened(path: str, flags: int, advice: str, name: str | None = None, folder: int | None = None) -> int:
    try:
        return os.open(name or path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if os.path.islink(path):
            raise NotAuthenticated(
                f"{path} is a symbolic link; keys are read from no link, give the place itself"
            ) from None
        raise ConfigError(f"keys: cannot read {path}: {error.strerror}; {advice}") from None


def _check(path: str, found: os.stat_result, forbidden: int, wanted: str) -> None:
    """Raise NotAuthenticated where another account may read or replace this."""
    if found.st_uid != os.geteuid():
        raise NotAuthenticated(
            f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}, who reads it; "
            f"chown {os.geteuid()} {path}, if its keys are yours"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & forbidden:
        raise NotAuthenticated(f"{path} has mode {mode:03o}, so other accounts could use it; chmod {wanted} {path}")


def _key(path: str, name: str, folder: int, forbidden: int) -> bytes:
    file = _opened(path, 0, f"look at {path}", name, folder)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise NotAuthenticated(f"{path} is no ordinary file; wanted a key")
        _check(path, about, forbidden, "600" if forbidden == _PRIVATE else "644")
        text = os.read(file, 100).strip()
    finally:
        os.close(file)
    if not _Z85.fullmatch(text):
        raise ConfigError(f"{path} holds no key; wanted 40 characters of Z85, as dps keys new writes them")
    return text


class KeyFolder:
    """A folder of keys, which is read again when files come or go. Any thread may call."""

    def __init__(self, path: str, held: Keys | None = None, roles: Sequence[str] = ()) -> None:
        """`held`: keys that are in no folder; `path` then only names them. `roles`: as of `read`."""
        self.path = path
        self.held = held is not None
        self.version = 0
        """Rises when keys are gone, so that connections which use them must end."""
        self.refused: set[bytes] = set()
        """The public keys of own pairs that the chief has refused: they were revoked there, and not here."""
        self._late: dict[tuple[str, bytes], float] = {}
        """The keys that were public ones, with their roles, and how long they are expected of listeners still."""
        self._problem = ""
        self._names = self._listed()
        self.keys = read(path, roles) if held is None else held

    def servers(self, role: str) -> list[bytes]:
        """The public keys that a listener of a role may have, the oldest first, those that are gone last."""
        known = self.keys.public.get(role, [])
        return [*reversed(known), *(key for of, key in self._late if of == role and key not in known)]

    def file(self, role: str, kind: str) -> str:
        """The name that the file of a role's key has in the newest set that there is something of."""
        return f"{role}-{max((int(match[2]) for match in map(FILE.fullmatch, self._names) if match), default=1)}.{kind}"

    def _listed(self) -> frozenset[str]:
        try:
            return frozenset(filter(FILE.fullmatch, os.listdir(self.path)))
        except OSError:
            return frozenset()

    def changed(self) -> bool:
        """Read the folder again if files have come or gone; returns whether its keys are others now. While it cannot
        be read, as while files are copied there, the keys stay; the log says so once."""
        names, before, now = self._listed(), self.keys, time.monotonic()
        if names != self._names:
            try:
                self.keys, self._names, self._problem = read(self.path), names, ""
            except DpsError as error:
                if self._problem != str(error):
                    log.error("the keys stay as they were: %s", error)
                self._problem = str(error)
        gone, late = before.all() - self.keys.all(), self._late
        self._late = {each: until for each, until in late.items() if until > now} | {
            (role, key): now + LATE_S for role, key in gone if key in before.public.get(role, ())
        }
        self.version += bool(gone or late.keys() - self._late.keys())
        return self.keys != before


class JoinedKey(NamedTuple):
    """A key that has joined by a token."""

    role: str
    under: bytes
    """The public keys that this role had then, with a space between them: while a folder has one of them, it accepts
    this one, too. So the older of two may be revoked, and a host may not have the newer one yet."""


class AcceptedKeys:
    """Whose keys one node accepts: those of its folder, and those that have joined its run by tokens.

    The node's thread writes it, that of ZAP reads it."""

    _numbers = itertools.count(1)

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self.domain = b"dps-%d" % next(self._numbers)
        """Names it to libzmq."""
        self.joined: Mapping[bytes, JoinedKey] = {}
        """By public key. It is replaced as a whole."""
        self.token_problem: Callable[[bytes], str | None] = lambda key: None
        """At a chief: why the join token with this public key is not accepted; "" if it is, None for no token."""

    def user(self, key: bytes) -> str:
        """Whose public key this is: a role, or a role and the key for one that is in no folder; "" for nobody's."""
        if role := self.folder.keys.role_of(key):
            return role
        joined = self.joined.get(key)
        if joined is not None and not set(joined.under.split()).isdisjoint(
            self.folder.keys.public.get(joined.role, ())
        ):
            return f"{joined.role} {key.decode()}"
        return f"{TOKEN} {key.decode()}" if self.token_problem(key) == "" else ""

    def problem(self, key: bytes) -> str:
        """Why a key is not accepted, for the log."""
        return self.token_problem(key) or f"{self.folder.path} has no such key"


@record
class Credentials:
    """The keys of one endpoint: its folder, its role in it, and whose keys it accepts."""

    folder: KeyFolder
    role: str
    accepted: AcceptedKeys

    @property
    def pairs(self) -> list[Pair]:
        """The pairs that it may use, the oldest first: other hosts may not have the newer one yet. One that the chief
        has refused comes last."""
        oldest = reversed(self.folder.keys.pairs.get(self.role, []))
        return sorted(oldest, key=lambda pair: pair.public in self.folder.refused)

    def pair(self) -> Pair:
        """The pair to listen with. Raises NotAuthenticated if the folder has none (any more)."""
        if not self.pairs:
            raise NotAuthenticated(missing(self.folder, self.role))
        return self.pairs[0]

    def servers(self, user: str) -> list[bytes]:
        """The public keys that the listener of a role may have, the oldest first; or the one of `AcceptedKeys.user`."""
        if user == ANY_TASK:
            return [key for role in sorted(TASKS - CHIEF_ONLY) for key in self.folder.servers(role)]
        role, _, key = user.partition(" ")
        return [key.encode()] if key else self.folder.servers(role)

    def as_role(self, *roles: str) -> Credentials:
        """The same folder in the first of these roles of which it has a private key, or else in the first."""
        role = next((role for role in roles if self.folder.keys.pairs.get(role)), roles[0])
        return Credentials(self.folder, role, self.accepted)


def missing(folder: KeyFolder, role: str) -> str:
    """The message if a folder has no private key of a role."""
    there = ", ".join(sorted(folder.keys.pairs)) or "no role"
    lacks = "" if folder.held else f": {folder.file(role, 'key')} is missing"
    export = f"dps keys export DIR --role {role} OUT"
    return f"{folder.path} has no private key of {role}, only of {there}{lacks}; where all keys are: {export}"


def missing_public(folder: KeyFolder, role: str) -> str:
    """The message if a folder has no public key of a role with which somebody listens."""
    if folder.held:
        return f"{folder.path} came without a public key of {role}; join again by a new token (dps token)"
    file, own = folder.file(role, "pub"), " ".join(f"--role {own}" for own in sorted(folder.keys.pairs))
    return (
        f"{folder.path} lacks {file}, the public key by which a {role} is known; where all keys are: "
        f"dps keys export DIR {own} OUT, and copy {file} from OUT"
    )


_folders: dict[str, KeyFolder] = {}
_lock = threading.Lock()


def credentials(path: str | os.PathLike[str] | None, *roles: str) -> Credentials | None:
    """The keys of a folder, or of a name of `hold`, in the first of these roles that it has; None without a path.

    Raises ConfigError if there is no such folder or libzmq has no CURVE, and NotAuthenticated if it has none of the
    roles, or others may read it."""
    if not path:
        return None
    check_curve()
    where = os.path.abspath(os.path.expanduser(os.fspath(path)))
    with _lock:
        folder = _folders.get(os.fspath(path)) or _folders.get(where)
        if folder is None:
            folder = _folders[where] = KeyFolder(where, roles=roles)
    folder.changed()
    made = Credentials(folder, roles[0], AcceptedKeys(folder)).as_role(*roles)
    made.pair()
    return made


def hold(name: str, held: Keys) -> None:
    """Keep keys in this process under a name that `credentials` takes like the path of a folder."""
    with _lock:
        _folders[name] = KeyFolder(name, held)


def is_key(text: object) -> bool:
    """Whether this is a key in Z85."""
    return isinstance(text, bytes) and _Z85.fullmatch(text) is not None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
