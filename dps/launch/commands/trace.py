"""`dps trace`: a trace of all tasks of a run in one file."""

from __future__ import annotations

import argparse
import os
import sys

from dps.actors.caller import Caller
from dps.cluster.address import check_address
from dps.errors import ConfigError
from dps.launch.commands.runs import folder_of
from dps.launch.runs import asked
from dps.launch.runs.keeper import use_keys
from dps.launch.runs.view import read_run
from dps.process.own_files import make_folder
from dps.tracing.gathering import Gathering, Traced, as_bytes, check_wish
from dps.transport.clock import wall
from dps.transport.current import keys_for, runtime


def find_chief(run: str | None) -> tuple[str, str]:
    """The chief's address of a run by its number, of that of an address, or of the only one that goes on; and a name
    for its files. Raises ConfigError for a run that is over or has no chief yet."""
    if run is not None and ":" in run:
        check_address(run)
        return run, "run"
    path = folder_of(run, "trace")
    view = read_run(path, wall())
    if view.is_over:
        raise ConfigError(f"run {view.id} has ended ({view.state}); only a run that goes on can be traced: dps list")
    if not view.values["chief"]:
        raise ConfigError(f"run {view.id} has no chief yet ({view.state}); try again when it runs")
    use_keys(path, asked.read_variables(path))
    return str(view.values["chief"]), view.id


def run_trace(args: argparse.Namespace) -> int:
    """Take the trace, write it, and say where it is and what it lacks."""
    wish = check_wish(args.steps, args.seconds)
    chief, name = find_chief(args.id)
    if args.out is not None and os.path.isdir(args.out):
        raise ConfigError(f"--out {args.out} is a folder; wanted the name of a file")
    own = runtime()
    caller = Caller(own, "dps trace", keys_for(chief, "operator"))
    try:
        made = Gathering(own, caller, chief, wish).take_trace(_tell_begun)
    finally:
        caller.close()
    path = args.out or f"trace-{name}-step-{made.first + made.steps}.json"
    make_folder(os.path.dirname(os.path.abspath(path)))
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
