"""Joins a run by a token, as `python -m dps.role --join` and DPS_TOKEN_FILE ask for it."""

from __future__ import annotations

import argparse
import os
import stat
import sys

from dps.cluster.address import is_token
from dps.errors import ConfigError

READABLE = "every account of this machine can read it"


def join(args: argparse.Namespace) -> None:
    """Use the token that --join names, "-" for stdin, "@FILE", or the token itself, or else DPS_TOKEN_FILE. It sets
    --chief, --job where that is not given, and DPS_KEYS for this process. Blocks.

    Raises ConfigError for no token, and what `dps.worker.enrolling.enrol` raises."""
    if args.chief or args.keys or os.environ.get("DPS_KEYS"):
        given = "--chief" if args.chief else "a folder of keys (--keys, DPS_KEYS)"
        raise ConfigError(f"got a join token and {given}; a token says where the chief is, and brings a key; give one")
    from dps.worker.enrolling import enrol

    args.chief, os.environ["DPS_KEYS"] = enrol(_read(args.join or f"@{os.environ['DPS_TOKEN_FILE']}"))
    args.job = args.job or "worker"


def _read(given: str) -> str:
    if given == "-":
        if sys.stdin.isatty():
            print("paste the join token: ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()
    if given.startswith("@"):
        return _read_file(given[1:])
    if not is_token(given):
        raise ConfigError("--join wants - (stdin), @FILE or a token that dps token has printed")
    _warn(f"the token on this command line: {READABLE}; better --join - or --join @FILE")
    return given


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IRGRP | stat.S_IROTH):
                _warn(f"the join token in {path}: other accounts can read it; chmod 600 {path}")
            return file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read a join token from {path}: {error}") from None


def _warn(text: str) -> None:
    print(f"dps: {text}", file=sys.stderr)
