"""Reads a folder of keys: a pair for each role that this machine may have, and the public keys of all roles.

`worker-1.key` is the private key of a role in the first set, `worker-1.pub` its public key: 40 characters of Z85 each.
All sets that are there are accepted; the newest is used first. `key_files.py` writes such folders.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import zmq

from dps.errors import ConfigError, DpsError, NotAuthenticated
from dps.record import record
from dps.transport.roles import ROLES, TOKEN

log = logging.getLogger("dps")

FILE = re.compile(rf"({'|'.join(ROLES)})-([1-9][0-9]{{0,8}})\.(key|pub)")
_Z85 = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_PRIVATE, _WRITABLE = 0o077, 0o022
"""Bits of a mode that others must not have: on a folder and a private key, and on a public key."""


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
    """What a folder holds, by role; the newest set first."""

    pairs: dict[str, list[Pair]]
    public: dict[str, list[bytes]]

    def role_of(self, public: bytes) -> str:
        """The role of a public key; "" if none has it."""
        return next((role for role, known in self.public.items() if public in known), "")


def check_curve() -> None:
    """Raise ConfigError if libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise ConfigError(
            f"this libzmq ({zmq.zmq_version()}) has no CURVE, so keys cannot be used; that of pip install pyzmq has it"
        )


def read(path: str) -> Keys:
    """The keys of a folder.

    Raises ConfigError if it is no folder of keys, and NotAuthenticated for a file that others may read or replace."""
    folder = _opened(path, os.O_DIRECTORY)
    try:
        _check(path, os.fstat(folder), _PRIVATE, "700")
        found = [match for name in os.listdir(folder) if (match := FILE.fullmatch(name))]
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
    if not public:
        raise ConfigError(f"{path} has no keys; make a folder of them with: dps keys new {path}")
    return Keys(pairs, public)


def _opened(path: str, flags: int, name: str | None = None, folder: int | None = None) -> int:
    try:
        return os.open(name or path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if os.path.islink(path):
            raise NotAuthenticated(
                f"{path} is a symbolic link; keys are read from no link, give the place itself"
            ) from None
        what = "make a folder of keys with: dps keys new" if folder is None else "look at"
        raise ConfigError(f"keys: cannot read {path}: {error.strerror}; {what} {path}") from None


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
    file = _opened(path, 0, name, folder)
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

    def __init__(self, path: str, held: Keys | None = None) -> None:
        """`held`: keys that are in no folder; `path` then only names them."""
        self.path = path
        self.held = held is not None
        self.version = 0
        """Rises with each change of the keys."""
        self._names = self._listed()
        self.keys = read(path) if held is None else held

    def _listed(self) -> frozenset[str]:
        try:
            return frozenset(filter(FILE.fullmatch, os.listdir(self.path)))
        except OSError:
            return frozenset()

    def changed(self) -> bool:
        """Read the folder again if files have come or gone; returns whether its keys are others now. A folder that
        cannot be read is told in the log once, and the keys stay."""
        names = self._listed()
        if names == self._names:
            return False
        self._names, before = names, self.keys
        try:
            self.keys = read(self.path)
        except DpsError as error:
            log.error("the keys stay as they were: %s", error)
        self.version += self.keys != before
        return self.keys != before


class Joined(NamedTuple):
    """A key that has joined by a token."""

    role: str
    under: bytes
    """The public key of this role that was the newest then. While a folder has that one, it accepts this one, too."""


class Accepted:
    """Whose keys one node accepts: those of its folder, and those that have joined its run by tokens.

    The node's thread writes it, that of ZAP reads it."""

    _numbers = itertools.count(1)

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self.domain = b"dps-%d" % next(self._numbers)
        """Names it to libzmq."""
        self.joined: Mapping[bytes, Joined] = {}
        """By public key. It is replaced as a whole."""
        self.token_problem: Callable[[bytes], str | None] = lambda key: None
        """At a chief: why the join token with this public key is not accepted; "" if it is, None for no token."""

    def user(self, key: bytes) -> str:
        """Whose public key this is: a role, or a role and the key for one that is in no folder; "" for nobody's."""
        if role := self.folder.keys.role_of(key):
            return role
        joined = self.joined.get(key)
        if joined is not None and joined.under in self.folder.keys.public.get(joined.role, ()):
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
    accepted: Accepted

    @property
    def pairs(self) -> list[Pair]:
        """The pairs that it may use, the newest first."""
        return self.folder.keys.pairs.get(self.role, [])

    def pair(self) -> Pair:
        """The newest pair. Raises NotAuthenticated if the folder has none (any more)."""
        if not self.pairs:
            raise NotAuthenticated(missing(self.folder, self.role))
        return self.pairs[0]

    def servers(self, user: str) -> list[bytes]:
        """The public keys that the listener of a role may have, the newest first; or the one of `Accepted.user`."""
        role, _, key = user.partition(" ")
        return [key.encode()] if key else self.folder.keys.public.get(role, [])

    def as_role(self, *roles: str) -> Credentials:
        """The same folder in the first of these roles of which it has a private key, or else in the first."""
        role = next((role for role in roles if self.folder.keys.pairs.get(role)), roles[0])
        return Credentials(self.folder, role, self.accepted)


def missing(folder: KeyFolder, role: str) -> str:
    """What to say if a folder has no private key of a role."""
    there = ", ".join(sorted(folder.keys.pairs)) or "no role"
    export = f"dps keys export DIR --role {role} OUT"
    return f"{folder.path} has no private key of {role}, only of {there}; where all keys are: {export}"


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
            folder = _folders[where] = KeyFolder(where)
    folder.changed()
    made = Credentials(folder, roles[0], Accepted(folder)).as_role(*roles)
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
