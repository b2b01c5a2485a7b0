"""The part that the command lines of `dps` and of a task share: parser, exit codes, and flags of where to listen."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TextIO

from dps.errors import DpsError

EXIT_CODES = (
    "exit codes: 0 done, 1 the program failed, 2 bad arguments or configuration, 3 a task was lost for good, "
    "4 a deadline passed, 5 refused (keys), 130 stopped by a second Ctrl-C, 143 a ps ended by SIGTERM while the run "
    "goes on"
)

_TRY = {
    errno.ENOSPC: "make room there, or name a folder of another disk",
    errno.EDQUOT: "make room there, or name a folder of another disk",
    errno.EROFS: "name a folder that can be written",
    errno.EACCES: "give this account the right, or name another path",
    errno.EPERM: "give this account the right, or name another path",
    errno.ENOENT: "look at how the path is written",
    errno.ENOTDIR: "name a folder",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another path",
}
"""What to try after an error of the operating system."""
VARIABLES = (
    "DPS_BIND", "DPS_ADVERTISE", "DPS_PORTS", "DPS_KEYS", "DPS_TOKEN_FILE", "DPS_RUNS", "XDG_STATE_HOME"
)  # fmt: skip
"""Variables that people set in place of flags; errors about what they hold name them."""
_set: dict[str, str] = {}
"""Those of them that were set when the command began, before dps set any itself."""


def guarded(work: Callable[[], int], verbose: bool = False) -> int:
    """The exit code of `work`. Errors of dps and of the operating system become one line on stderr. At its end the
    outputs hold nothing back that they cannot write: the interpreter would try again, and end with 120."""
    open_closed_streams()
    try:
        return _guarded(work, verbose)
    finally:
        drop_output(sys.stdout)
        drop_output(sys.stderr)


def _guarded(work: Callable[[], int], verbose: bool) -> int:
    _set.clear()
    if "DPS_LAUNCHED" not in os.environ:  # else the launcher has set them, from its flags
        _set.update((name, os.environ[name]) for name in VARIABLES if os.environ.get(name))
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # here, for a full disk may show itself only now
    except (DpsError, ValueError, OSError, OverflowError) as error:
        drop_output(sys.stdout)
        if isinstance(error, BrokenPipeError):  # who reads the output may go, as `head` does
            return 128 + signal.SIGPIPE
        if verbose:
            sys.excepthook(*sys.exc_info())
        with contextlib.suppress(OSError):
            print(f"dps: {said(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, DpsError) and error.exit_code != 1 else 2
    except KeyboardInterrupt:
        return 130


def said(error: Exception) -> str:
    """An error in one line, with the variables that it is about."""
    text = _text(error)
    about = [
        f"{name}={value}" for name, value in _set.items()
        if name not in text and re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", text)
    ]  # fmt: skip
    return f"{text} ({', '.join(about)})" if about else text


def _text(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"a number is too large ({error}); give a smaller one"
    if not isinstance(error, OSError) or isinstance(error, DpsError) or error.strerror is None:
        return str(error)
    where = "the output or a file of dps" if error.filename is None else error.filename
    advice = _TRY.get(error.errno or 0)
    return f"{where}: {error.strerror}{f'; {advice}' if advice else ''}"


def open_closed_streams() -> None:
    """Open stdin, stdout and stderr on nothing where they were closed before the start (`2>&-`). Else the next socket
    or file gets the number, and lines for people are written into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def drop_output(stream: TextIO | None) -> OSError | None:
    """Flush an output. If it cannot take what was printed, that and all that follows is dropped. Returns the reason."""
    try:
        if stream and not stream.closed:
            stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
        return error
    return None


CHOICE = re.compile(r"argument (?P<of>\S+): invalid choice: '(?P<got>.*)' \(choose from (?P<known>.*)\)", re.S)
"""What argparse says of a word that is none of those that it knows."""


def close(word: str, known: Iterable[str], alike: float = 0.5) -> str:
    """The known word that is most like this one; "" if none is."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1, alike)), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word that is most like this one, or all of them."""
    names = [name.strip("'") for name in known]
    found = close(word, names)
    return f"did you mean {found!r}?" if found else f"wanted one of {', '.join(names) or 'none'}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line. It takes no beginnings of names for names: `--ps_host` might become
    `--ps_hosts` where `--ps` was meant."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        end = f"{self.prog} --help lists the arguments"
        if found := CHOICE.fullmatch(message):
            what = f"{self.prog} has no command" if found["of"] == "COMMAND" else f"{found['of']}: got"
            message = f"{what} {found['got']!r}; {nearest(found['got'], re.findall(r'[^ ,]+', found['known']))}"
        self.exit(2, f"dps: {message}{'' if message.endswith('?') else ';'} {end}\n")

    def parse_command(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse a command line; everything after "--" is in `arguments`."""
        cut = list(given).index("--") if "--" in given else len(given)
        own, behind = list(given[:cut]), list(given[cut + 1 :])
        args, unknown = self.parse_known_args(own)
        if unknown:
            self.error_of_unknown(own, unknown, behind, getattr(args, "program", None))
        args.arguments = behind
        return args

    def flags_of(self, command: str) -> list[str]:
        """The flags of a command, or of this parser if it has none of this name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and command in action.choices:
                return list(action.choices[command]._option_string_actions)
        return list(self._option_string_actions)

    def error_of_unknown(self, own: list[str], unknown: list[str], behind: list[str], program: str | None) -> NoReturn:
        """Report unknown arguments. If a program stands before them, they are probably meant for it."""
        known, after = own[: own.index(program) + 1] if program in own else [], list(unknown)
        for word in own[len(known) :]:
            if after and word == after[0]:
                del after[0]
            else:
                known.append(word)
        first = unknown[0].partition("=")[0]
        of = next((word for word in own if not word.startswith("-")), "") if self.prog == "dps" else ""
        command = f"{self.prog} {of}".rstrip()
        if program is None or after:
            meant = close(first.lstrip("-"), [flag.lstrip("-") for flag in self.flags_of(of)], 0.75)
            hint = f"did you mean --{meant}? " if meant else ""
            self.exit(2, f"dps: {first} is not an argument of {command}; {hint}{command} --help lists them\n")
        better = " ".join([self.prog, *known, "--", *unknown, *behind])
        name = os.path.basename(program)
        self.exit(2, f"dps: {first} is not an argument of {command}; arguments of {name} go after --: {better}\n")


def add_addresses(made: argparse.ArgumentParser) -> None:
    """The flags of where a task listens, which `dps launch` has, too."""
    add = made.add_argument
    add(
        "--bind",
        help="where to listen, ADDRESS[:PORT]: an address, a host name, an interface, 0.0.0.0 or [::] (default: the "
        "interface that reaches the chief, a free port)",
    )
    add("--advertise", metavar="HOST[:PORT]", help="what others are told (default: the address of --bind)")
    add("--ports", metavar="FIRST-LAST", help="the ports to choose from, for firewalls, as 5000-5100 (default: any)")
    add("--keys", metavar="DIR", help="the folder of this machine's keys (dps keys new): only who has one may connect")
    add("--trusted-network", action="store_true", help="listen beyond this machine without keys: plain sockets")


def addresses(args: argparse.Namespace) -> dict[str, str]:
    """Where a task listens, as variables of the environment: from the flags, else from this process's environment."""
    given = {
        "DPS_BIND": args.bind, "DPS_ADVERTISE": args.advertise, "DPS_PORTS": args.ports,
        "DPS_KEYS": args.keys and os.path.abspath(args.keys),
        "DPS_TRUSTED_NETWORK": "1" if args.trusted_network else None,
    }  # fmt: skip
    found = {name: value or os.environ.get(name, "") for name, value in given.items()}
    return {name: value for name, value in found.items() if value}
