"""What the command lines of `dps` and of a task share: the parser, the exit codes, and the flags of where to listen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

EXIT_CODES = (
    "exit codes: 0 done, 1 the program failed, 2 bad arguments or configuration, 3 a task was lost for good, "
    "4 a deadline passed, 5 refused (keys), 130 stopped by a second Ctrl-C, 143 a ps ended by SIGTERM while the run "
    "goes on"
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dps: {message}; {self.prog} --help lists the arguments\n")

    def take(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse a command line; everything after "--" is in `arguments`."""
        cut = list(given).index("--") if "--" in given else len(given)
        own, behind = list(given[:cut]), list(given[cut + 1 :])
        args, unknown = self.parse_known_args(own)
        if unknown:
            self.error_of_unknown(own, unknown, behind, getattr(args, "program", None))
        args.arguments = behind
        return args

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
            self.exit(2, f"dps: {first} is not an argument of {command}; {command} --help lists them\n")
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
