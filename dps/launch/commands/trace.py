"""`dps trace`: a trace of all tasks of a run in one file."""

from __future__ import annotations

import argparse
import os
import sys

from dps.actors.caller import Caller
from dps.cluster.address import check_address
from dps.errors import ConfigError
from dps.launch.runs import request
from dps.launch.runs.keeper import use_keys
from dps.launch.runs.view import read_run
from dps.tracing.gathering import TraceClient, Traced, as_bytes, check_wish
from dps.transport.clock import wall
from dps.transport.current import keys_for, runtime


def trace_run(path: str, args: argparse.Namespace) -> int:
    """`trace_chief` of the run in a folder. Raises ConfigError for a run that is over or has no chief yet."""
    view = read_run(path, wall())
    if view.is_over:
        raise ConfigError(f"run {view.id} has ended ({view.state}); only a run that goes on can be traced: dps list")
    check_wish(args.steps, args.seconds)
    if not view.values["chief"]:
        raise ConfigError(f"run {view.id} has no chief yet ({view.state}); try again when it runs")
    use_keys(path, request.read_variables(path))
    return trace_chief(str(view.values["chief"]), view.id, args)


def trace_chief(chief: str, name: str, args: argparse.Namespace) -> int:
    """Take a trace of the run of the chief at an address, write it, and say where it is and what it lacks. `name`: of
    the run, for the file."""
    wish = check_wish(args.steps, args.seconds)
    check_address(chief)
    if args.out is not None and os.path.isdir(args.out):
        raise ConfigError(f"got --out {args.out}, which is a folder; wanted the name of a file")
    own = runtime()
    caller = Caller(own, "dps trace", keys_for(chief, "operator"))
    try:
        made = TraceClient(own, caller, chief, wish).take_trace(_tell_begun)
    finally:
        caller.close()
    path = args.out or f"trace-{name}-step-{made.first + made.steps}.json"
    own.storage.write(path, [as_bytes(made.trace)])
    _tell_made(made, path)
    return 0


def _tell_begun(tasks: list[str]) -> None:
    if sys.stderr.isatty():
        print(f"dps: traces {', '.join(tasks)}; Ctrl-C ends the trace and writes it", file=sys.stderr, flush=True)


def _tell_made(made: Traced, path: str) -> None:
    for why in made.left_out.values():
        print(f"dps: left out: {why}", file=sys.stderr)
    count = sum(event["ph"] == "X" for event in made.trace["traceEvents"])
    print(f"{path}: {made.steps} steps of {', '.join(made.tasks)}, {count} slices; open it in https://ui.perfetto.dev")
