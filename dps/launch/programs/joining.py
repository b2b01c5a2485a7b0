"""Joins a run by a token, as `python -m dps.role --join` and DPS_TOKEN_FILE ask for it."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from typing import TextIO

from dps.cluster.address import is_token
from dps.errors import ConfigError, Unavailable

LONGEST = 10_000
READABLE = "every account of this machine can read it"


def join(args: argparse.Namespace) -> None:
    """Use the token that --join names, "-" for stdin, "@FILE", or the token itself, or else DPS_TOKEN_FILE. It sets
    --chief, --job where that is not given, and DPS_KEYS for this process. Blocks.

    Raises ConfigError for no token, or for what is wrong on this machine, before the token is used; and what
    `dps.worker.joining.enrol` raises."""
    if args.chief or args.keys or os.environ.get("DPS_KEYS"):
        given = "--chief" if args.chief else "a folder of keys (--keys, DPS_KEYS)"
        raise ConfigError(f"got a join token and {given}; a token says where the chief is, and brings a key; give one")
    from dps.transport.keys.token import parse_token

    args.job = args.job or "worker"
    text = _read(args.join or f"@{os.environ['DPS_TOKEN_FILE']}")
    _check_here(args, parse_token(text).chief)
    from dps.worker.joining import enrol

    args.chief, os.environ["DPS_KEYS"] = enrol(text, "worker")


def _check_here(args: argparse.Namespace, chief: str) -> None:
    """Raise ConfigError or Unavailable for what would end this task after it has joined."""
    from dps.cluster.spec import job_name
    from dps.launch.programs.program import check_program
    from dps.process.flags import addresses
    from dps.transport.sockets.addresses import Binding
    from dps.transport.sockets.listener import check_free

    if job_name(args.job) != "worker":
        raise ConfigError(
            f"got a join token and --job {args.job}: a token lets in workers; for a machine with other tasks, where "
            f"all keys are: dps keys export DIR --role {args.job} OUT"
        )
    if args.program:
        check_program(args.program)
    elif args.serve:
        from dps.calls.functions import ServedFunctions

        ServedFunctions(args.serve)
    listens = addresses(args)
    bind, advertise, ports = (listens.get(name, "") for name in ("DPS_BIND", "DPS_ADVERTISE", "DPS_PORTS"))
    try:
        check_free(Binding(bind, advertise, ports, chief))
    except Unavailable as error:
        error.exit_code = 2  # this task's own address is configured wrongly
        raise


def _read(given: str) -> str:
    if given == "-":
        if sys.stdin.isatty():
            print("paste the join token: ", end="", file=sys.stderr, flush=True)
        return _line(sys.stdin, "stdin")
    if given.startswith("@"):
        return _read_file(given[1:])
    if not is_token(given):
        raise ConfigError("--join wants - (stdin), @FILE or a token that dps token has printed")
    _warn(f"the token on this command line: {READABLE}; better --join - or --join @FILE")
    return given


def _read_file(path: str) -> str:
    if not path:
        raise ConfigError("got --join @ without a file; wanted @FILE, with the line that dps token has printed")
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IRGRP | stat.S_IROTH):
                _warn(f"the join token in {path}: other accounts can read it; chmod 600 {path}")
            return _line(file, path)
    except OSError as error:
        raise ConfigError(
            f"cannot read a join token from {path}: {error.strerror}; wanted a file made by: dps token > FILE"
        ) from None


def _line(file: TextIO, name: str) -> str:
    """The first line; no token is longer than `LONGEST`."""
    try:
        return file.readline(LONGEST)
    except UnicodeDecodeError:
        raise ConfigError(f"{name} has binary content; wanted the line that dps token has printed") from None


def _warn(text: str) -> None:
    print(f"dps: {text}", file=sys.stderr)
