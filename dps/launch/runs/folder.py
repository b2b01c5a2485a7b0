"""Where runs are kept: a folder for each, by its number. Each file has one writer, and is replaced as a whole.

run.json       what was asked for: name, command, plan; written once, before the keeper starts
env.json       the values of the plan's variables, which may be secrets; written once, too
state.json     states, times, exit codes; written by the keeper
heartbeat      the time of the keeper's last sign of life
usage.json     processor time and memory of each task, written by the keeper
reserve        room for the last state.json on a disk that is full by then
orders/        what others ask of the keeper: a file for each, which its writer makes
logs/          a file for each task, and the files before it
output/        OUTPUT_DIR, if the run has none of its own

Folders have mode 700 and files 600 (docs/decisions/0062).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from dps.errors import ConfigError
from dps.process import own_files
from dps.process.config import state_folder

FORMAT = 2
"""1: every account could read the folder, and run.json had the values of variables."""
LAST = ".last"
"""The file in the folder of all runs that `dps prune` writes."""


def root(environ: Mapping[str, str] | None = None) -> str:
    """The folder of all runs: DPS_RUNS, else dps/runs in the user's state folder."""
    env = os.environ if environ is None else environ
    if chosen := env.get("DPS_RUNS"):
        return os.path.abspath(chosen)
    return os.path.join(state_folder(env), "runs")


def create(folder: str) -> str:
    """Make the folder of a new run in the folder of all runs; returns its path. Its name is the next free number."""
    try:
        own_files.make_folder(folder)
        known = numbers(folder)
        _close_old(folder, known)
        number = max([last(folder), *known])
        while True:
            number += 1
            made = os.path.join(folder, str(number))
            with contextlib.suppress(FileExistsError):  # somebody else has taken it
                os.mkdir(made, own_files.FOLDER)
                break
        for part in ("logs", "orders"):
            os.mkdir(os.path.join(made, part), own_files.FOLDER)
    except OSError as error:
        raise ConfigError(f"no run can be kept in {folder}: {error.strerror}; set DPS_RUNS to another folder") from None
    return made


def _close_old(folder: str, known: list[int]) -> None:
    """Close what earlier versions of dps have left open to other accounts. A run of this version that its user has
    opened stays open."""
    if folder.startswith(os.path.join(state_folder(), "")):
        for own in (state_folder(), folder):
            own_files.close_folder(own)
    for number in known:
        path = os.path.join(folder, str(number))
        with contextlib.suppress(OSError, ConfigError):
            if os.lstat(path).st_mode & own_files.OTHERS and read(os.path.join(path, "run.json")).get("format", 1) < 2:
                own_files.close_folder(path)


def numbers(folder: str) -> list[int]:
    """The numbers of all runs, in rising order. ConfigError if the folder cannot be read."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"the runs in {folder} cannot be read: {error.strerror}; set DPS_RUNS to the folder of your runs"
        ) from None


def readable(folder: str) -> list[int]:
    """The numbers of the runs of this account, in rising order. ConfigError if the folder cannot be read."""
    return [number for number in numbers(folder) if is_readable(os.path.join(folder, str(number)))]


def is_readable(path: str) -> bool:
    """Whether this process may look into the folder of a run: in a folder of all accounts, others have theirs."""
    return os.access(path, os.R_OK | os.X_OK)


def last(folder: str) -> int:
    """The highest number of the runs that were removed; 0 if there are none. Numbers are never used again."""
    with contextlib.suppress(FileNotFoundError, ValueError), open(os.path.join(folder, LAST)) as file:
        return int(file.read())
    return 0


def find(run: str, folder: str | None = None) -> str:
    """The folder of a run by its number. ConfigError if there is none."""
    folder = root() if folder is None else folder
    path = os.path.join(folder, run)
    if run.isdecimal() and os.path.isdir(path):
        if not is_readable(path):
            raise ConfigError(f"run {run} in {folder} is another account's; dps list shows yours")
        return path
    known = numbers(folder)
    there = f"the newest is {known[-1]}" if known else "there are none"
    raise ConfigError(f"no run {run!r} in {folder}; {there}; dps list shows them")


def write(path: str, values: object) -> None:
    """Replace a file by these plain values as JSON, so that a reader sees the old file or the new one."""
    import json

    replace(path, json.dumps(values, indent=1) + "\n")


def replace(path: str, text: str) -> None:
    """Replace a file as a whole."""
    made = f"{path}.{os.getpid()}.new"
    try:
        with open(made, "w", encoding="utf-8", opener=own_files.opener) as file:
            file.write(text)
        os.replace(made, path)
    except OSError:  # a full disk; what was written takes room from the next try
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def read(path: str) -> dict[str, Any]:
    """The values in a file; {} if it is not there (yet). ConfigError if they cannot be read."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); move its run's folder out of {os.path.dirname(os.path.dirname(path))}"
        ) from None
