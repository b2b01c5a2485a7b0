"""Writes folders of keys: makes a set, gives a host its part, adds a set, takes one away."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from dps.cluster.address import parse
from dps.errors import ConfigError, Unavailable
from dps.process.config import state_folder
from dps.transport.keys.keyring import FILE, Pair, check_curve, read
from dps.transport.message import ROLES
from dps.transport.sockets.addresses import is_loopback, resolve

PART = ".part"
"""Ends the name of a file that is being written."""


def new(path: str) -> None:
    """Make a folder with one pair for each role. Raises ConfigError if it exists and is not empty."""
    check_curve()
    with _writing(path):
        if os.path.isdir(path):
            if _others(path):
                raise ConfigError(f"{path} is not empty; wanted a new folder (dps keys rotate adds a set to its keys)")
            os.chmod(path, 0o700)
    write(path, _new_set(1))


def part(path: str, roles: Sequence[str]) -> dict[str, str]:
    """The files that a host of these roles needs, by their names: the private keys of the roles, and all public ones.
    NotAuthenticated if others may read the folder."""
    read(path)
    files = {}
    for name in _listed(path):
        if name.endswith(".pub") or _role(name) in roles:
            with open(os.path.join(path, name), encoding="ascii") as file:
                files[name] = file.read().strip()
    return files


def export(path: str, roles: Sequence[str], to: str) -> None:
    """Write what a host of these roles needs: their private keys, and all public ones. A folder that an earlier export
    wrote is brought up to date."""
    keys = read(path)
    for role in roles:
        _check_role(role)
        if role not in keys.pairs:
            raise ConfigError(
                f"{path} has no private key of {role}, only of {', '.join(sorted(keys.pairs)) or 'no role'}"
            )
    with _writing(to):
        if os.path.lexists(to):
            _check_out(path, to)
    files = {name: key.encode() for name, key in sorted(part(path, roles).items())}
    write(to, files)
    with _writing(to):
        for name in set(_listed(to)) - files.keys():
            os.unlink(os.path.join(to, name))


def _check_out(path: str, to: str) -> None:
    """Raise ConfigError for a folder to export to that is neither an earlier export nor empty and private."""
    if os.path.samefile(path, to):
        raise ConfigError(f"got {to} as the folder to write, which is the one to read; wanted another one")
    if os.path.isdir(to) and _listed(to):
        read(to)
        return
    about = os.stat(to)
    private = about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077
    if not os.path.isdir(to) or not private or _others(to):
        raise ConfigError(f"{to} exists and is no export of keys; wanted the name of a new folder, which is made")


def copy(source: str, to: str) -> None:
    """Copy the keys of a folder that may have links and belong to another user to a new private folder."""
    files = {}
    try:
        os.mkdir(to, mode=0o700)
        for name in _listed(source):
            with open(os.path.join(source, name), "rb") as file:
                files[name] = file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"the keys of {source} cannot be copied to {to}: {error.strerror}: {error.filename}"
        ) from None
    write(to, files)
    read(to)


def rotate(path: str) -> int:
    """Add a second accepted set; returns its number. Raises ConfigError if there are two already."""
    check_curve()
    keys = read(path)
    if keys.pairs.keys() != keys.public.keys():
        raise ConfigError(f"{path} has only a part of the keys; wanted the folder that dps keys new made")
    if any(len(public) > 1 for public in keys.public.values()):
        raise ConfigError(
            f"{path} has two sets already; when every host has the new one, dps keys revoke {path} --role ROLE takes "
            "the older pair of a role away"
        )
    number = 1 + max(_number(name) for name in _listed(path))
    write(path, _new_set(number))
    return number


def revoke(path: str, role: str) -> int:
    """Take the oldest pair of a role away; returns how many it still has.

    Raises ConfigError for a role of which only public keys are there: its tasks on other hosts could use that pair."""
    _check_role(role)
    keys = read(path)
    numbers = sorted({_number(name) for name in _listed(path) if _role(name) == role})
    if not numbers:
        raise ConfigError(f"{path} has no keys of {role}")
    if role not in keys.pairs:
        raise ConfigError(
            f"{path} is an export without the private key of {role}, and tasks here would lose who still uses that "
            f"pair; revoke it where all keys are, and then delete {path}/{role}-{numbers[0]}.pub"
        )
    with _writing(path):
        for kind in ("pub", "key"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, f"{role}-{numbers[0]}.{kind}"))
    return len(numbers) - 1


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ConfigError(f"got --role {role}; wanted one of {', '.join(ROLES)}")


def _listed(path: str) -> list[str]:
    return [name for name in os.listdir(path) if FILE.fullmatch(name)]


def _role(name: str) -> str:
    return name.partition("-")[0]


def _number(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _others(path: str) -> list[str]:
    """What is in a folder beside what a write that was killed has left."""
    return [name for name in os.listdir(path) if not (name.endswith(PART) and FILE.fullmatch(name.removesuffix(PART)))]


def _new_set(number: int) -> dict[str, bytes]:
    """The files of a new pair for each role. A private key comes before its public one: a half-written pair is not
    accepted."""
    pairs = {role: Pair.new() for role in ROLES}
    kinds = ("key", "secret"), ("pub", "public")
    return {f"{role}-{number}.{kind}": getattr(pair, key) for role, pair in pairs.items() for kind, key in kinds}


def write(folder: str, files: Mapping[str, bytes], public_mode: int = 0o644) -> None:
    """Write keys whole, and all or none: private ones for this user alone, others in `public_mode`. A folder that is
    not there is made. Who reads a key while it is written again sees the old one or the new one. Raises
    ConfigError."""
    there, written = os.path.isdir(folder), list[str]()
    with _writing(folder):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            for name, key in files.items():
                written.append(path := os.path.join(folder, name + PART))
                _write_new(path, key, 0o600 if name.endswith(".key") else public_mode)
            for name in files:
                path = os.path.join(folder, name)
                written += [] if os.path.lexists(path) else [path]
                os.replace(path + PART, path)
        except OSError:
            for path in written:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            if not there:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            raise


def _write_new(path: str, key: bytes, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(file, "wb") as out:
        out.write(key + b"\n")


@contextlib.contextmanager
def _writing(folder: str) -> Iterator[None]:
    """Errors of the system while a folder of keys is written are ConfigErrors."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"keys: cannot write to {folder}: {error.strerror}; nothing was changed; wanted a folder that can be "
            "written, on a disk that is not full"
        ) from None


def of_run(chief: str, trusted: bool) -> str:
    """The folder of keys of a run with its chief at this address, where nobody named one; "" for no keys. It is the
    user's own for a chief on this machine's loopback interface, unless the network is `trusted`. May query DNS.

    Raises ConfigError if the folder cannot be made."""
    where = parse(chief)
    if trusted or where.scheme != "tcp":
        return ""
    try:
        return folder() if is_loopback(resolve(where.host)) else ""
    except Unavailable:  # whoever connects there says so
        return ""


def is_own(path: str) -> bool:
    """Whether this is the folder of the user's own keys."""
    return path == _path()


def _path() -> str:
    return os.path.join(state_folder(), "keys")


def folder() -> str:
    """The folder of the user's own keys, which is made if it is not there. Raises ConfigError if it cannot be made."""
    path = _path()
    if not os.path.lexists(path):
        _make(path)
    return path


def _make(path: str) -> None:
    """Make the folder whole or not at all: tasks that start at the same time find the keys of the first one."""

    made = f"{path}.{os.urandom(8).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.mkdir(made, 0o700)
        new(made)
        os.rename(made, path)
    except (OSError, ConfigError) as error:
        if not os.path.isdir(path):
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"cannot make this user's own keys in {path}, which keep other accounts out: {why}; set "
                "XDG_STATE_HOME to a folder that this user may write, or give every task --keys DIR (DPS_KEYS)"
            ) from None
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(made):
                os.unlink(os.path.join(made, name))
            os.rmdir(made)
