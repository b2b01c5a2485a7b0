"""Writes folders of keys: makes a set, gives a host its part, adds a set, takes one away."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dps.errors import ConfigError
from dps.transport.keys import FILE, Pair, check_curve, read
from dps.transport.roles import ROLES


def new(path: str) -> None:
    """Make a folder with one pair for each role. Raises ConfigError if it exists and is not empty."""
    check_curve()
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.listdir(path):
            raise ConfigError(f"{path} is not empty; wanted a new folder (dps keys rotate adds a set to its keys)")
        os.chmod(path, 0o700)
    except OSError as error:
        raise ConfigError(f"keys: cannot make the folder {path}: {error.strerror}") from None
    _write_set(path, 1)


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
    if os.path.exists(to) and os.path.samefile(path, to):
        raise ConfigError(f"got {to} as the folder to write, which is the one to read; wanted another one")
    os.makedirs(to, mode=0o700, exist_ok=True)
    if os.listdir(to):
        read(to)  # an earlier export; nothing else is written to
    files = part(path, roles)
    for name, key in sorted(files.items()):
        _write(os.path.join(to, name), key.encode())
    for name in set(_listed(to)) - files.keys():
        os.unlink(os.path.join(to, name))


def copy(source: str, to: str) -> None:
    """Copy the keys of a folder that may have links and belong to another user to a new private folder."""
    try:
        os.mkdir(to, mode=0o700)
        for name in _listed(source):
            with open(os.path.join(source, name), "rb") as file:
                _write(os.path.join(to, name), file.read().strip())
    except OSError as error:
        raise ConfigError(
            f"the keys of {source} cannot be copied to {to}: {error.strerror}: {error.filename}"
        ) from None
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
    _write_set(path, number)
    return number


def revoke(path: str, role: str) -> int:
    """Take the oldest pair of a role away; returns how many it still has."""
    _check_role(role)
    read(path)
    numbers = sorted({_number(name) for name in _listed(path) if _role(name) == role})
    if not numbers:
        raise ConfigError(f"{path} has no keys of {role}")
    for kind in ("pub", "key"):
        name = os.path.join(path, f"{role}-{numbers[0]}.{kind}")
        if os.path.lexists(name):
            os.unlink(name)
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


def _write_set(path: str, number: int) -> None:
    """Write a pair for each role. A private key comes before its public one: a half-written pair is not accepted."""
    for role in ROLES:
        pair = Pair.new()
        _write(os.path.join(path, f"{role}-{number}.key"), pair.secret)
        _write(os.path.join(path, f"{role}-{number}.pub"), pair.public)


def _write(path: str, key: bytes) -> None:
    """Write one file whole, or not at all, in the mode that its kind has."""
    part, mode = f"{path}.part", 0o600 if path.endswith(".key") else 0o644
    if os.path.lexists(part):
        os.unlink(part)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(file, "wb") as out:
        out.write(key + b"\n")
    os.replace(part, path)
