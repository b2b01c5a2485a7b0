"""The `dps` command. Plain argparse, so that it works with the core alone and starts quickly."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from dps import __version__
from dps.errors import DpsError, MissingExtra
from dps.launch import engines
from dps.launch.commands.runs import RUNS, add_json, run_status
from dps.launch.commands.runs import add as add_runs
from dps.launch.supervision.output import tell_if_slow
from dps.process.config import THREADS
from dps.process.flags import EXIT_CODES, Parser, add_addresses, addresses, guarded
from dps.role import DEFAULT_CHIEF

EXAMPLES = """examples:
  dps launch --ps 2 --workers 4 train.py -- --steps 400
  dps launch experiment.yaml --set rate=0.1 --detach
  dps init                        an experiment file to begin with
  dps manifest kubernetes experiment.yaml | kubectl apply -f -
  dps list
  dps status 4
  dps logs 4 --task worker.1 --follow
  dps monitor 4
  dps watch 4
  dps trace 4 --steps 100
  dps kill 4
  dps prune --older-than 30d --keep 10
  dps doctor
  dps simulate train.py:train --ps 4 --workers 64 --seed 7
  dps bench --works pull,push --sizes 1m
  dps warm
  dps completion bash
  dps keys new keys
  dps token --chief 10.0.0.1:2220
"""
SHELLS = ("bash", "zsh")
RUNS_OF_BASH = """_dps_runs() {
  local runs="${DPS_RUNS:-${XDG_STATE_HOME:-$HOME/.local/state}/dps/runs}"
  compgen -W "$(cd "$runs" 2>/dev/null && ls -d [0-9]* 2>/dev/null)" -- "$1"
}
"""
"""Offers the numbers of runs: the names of their folders (`dps.launch.runs.folder`)."""
RUNS_OF_ZSH = """_dps_runs() {
  local runs="${DPS_RUNS:-${XDG_STATE_HOME:-$HOME/.local/state}/dps/runs}"
  compadd -- $runs/<->(N:t)
}
"""
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
"""How each shell completes a file name; functions of shtab."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a `dps` command; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: run_command(given))


def run_command(given: list[str]) -> int:
    if given[:1] == ["bench"]:
        return run_bench(given[1:])
    args = parser().parse_command(given)
    if getattr(args, "keys", None):
        os.environ["DPS_KEYS"] = os.path.abspath(args.keys)  # for all that this command makes
    if getattr(args, "trusted_network", False):
        os.environ["DPS_TRUSTED_NETWORK"] = "1"
    return int(args.run(args))


def parser() -> Parser:
    made = Parser(
        prog="dps", description="A parameter server for Python.", epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"dps {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    add_launch(commands)
    status = commands.add_parser(
        "status", help="show a run, or what a cluster is doing: tasks, step, checkpoint",
        epilog="examples: dps status, dps status 4, dps status 10.0.0.1:2220 --keys keys",
    )  # fmt: skip
    which = status.add_argument(
        "run_or_chief", nargs="?", metavar="ID|ADDRESS",
        help="a run's number, or a chief's address (default: the only run that goes on)",
    )  # fmt: skip
    which.complete = RUNS  # type: ignore[attr-defined]
    status.add_argument("--chief", help=f"the chief's address (default, where no run goes on, {DEFAULT_CHIEF})")
    add_folder(status)
    add_json(status)
    status.set_defaults(run=run_status)
    add_runs(commands)
    doctor = commands.add_parser(
        "doctor", help="show what this machine has that dps can use, and what would make dps faster",
        epilog="examples: dps doctor, dps doctor --chief 10.0.0.1:2220",
    )  # fmt: skip
    doctor.add_argument("--chief", help="check the way from here to the chief at this address instead")
    add_folder(doctor)
    doctor.add_argument("--json", action="store_true", help="print one JSON object, not lines")
    doctor.set_defaults(run=run_doctor)
    simulate = commands.add_parser(
        "simulate", help="run a training function on a simulated cluster",
        epilog="example: dps simulate train.py:train --ps 4 --workers 64 --seed 7",
    )  # fmt: skip
    simulate.add_argument("function", help="package.module:train or file.py:train, called with a dps.Server")
    simulate.add_argument("--ps", type=int, default=1, help="number of ps (default 1)")
    simulate.add_argument("--workers", type=int, default=2, help="number of workers (default 2)")
    simulate.add_argument("--seed", type=int, default=0, help="the same seed gives the same run (default 0)")
    simulate.add_argument("--update", help="the update mode: async (the default), sync, sync:sum, bounded:S, local:H")
    simulate.add_argument(
        "--compute", type=float, default=0.1, help="virtual seconds that a step computes (default 0.1)"
    )
    simulate.add_argument(
        "--calibration", metavar="FILE", default="shipped",
        help="what messages cost: a file that dps bench has made, or none (default: the documentation's machine)",
    )  # fmt: skip
    simulate.add_argument("--trace", action="store_true", help="print every event: messages, losses, restarts")
    simulate.add_argument("--save", metavar="FOLDER", help="write the files of the simulated disk to a real folder")
    simulate.set_defaults(run=run_simulate)
    commands.add_parser(
        "bench", help="measure pulls, pushes, steps, rows and training loops beside this machine's limits"
    )
    commands.add_parser(
        "warm", help="compile the kernels of a ps ahead of its first run", epilog="example: dps warm"
    ).set_defaults(run=run_warm)
    completion = commands.add_parser(
        "completion", help="print what makes a shell complete dps commands (Tab)",
        epilog="example: dps completion bash > ~/.local/share/bash-completion/completions/dps",
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=run_completion)
    add_token(commands.add_parser("token", help="print a join token: with it another machine joins without keys"))
    add_keys(commands.add_parser("keys", help="make keys, so that only who has one can talk to a run"))
    return made


def add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--keys", metavar="DIR", help="the folder of keys, if the run has keys (DPS_KEYS)")


def add_keys(keys: argparse.ArgumentParser) -> None:
    """The commands of `dps keys`."""
    keys.epilog = "examples: dps keys new keys, dps keys export keys --role worker for-box2, dps keys rotate keys"
    made = keys.add_subparsers(required=True, metavar="COMMAND", dest="what")
    new = made.add_parser("new", help="make a folder with a pair of keys for each role")
    export = made.add_parser("export", help="write what a machine needs whose tasks have certain roles")
    rotate = made.add_parser("rotate", help="add a second set of keys, which is accepted beside the first one")
    revoke = made.add_parser("revoke", help="take the oldest pair of a role away")
    for command in (new, export, rotate, revoke):
        command.add_argument("folder", metavar="DIR", help="the folder of the keys")
        command.set_defaults(run=run_keys)
    roles = "chief, ps, worker, reader, evaluator, dataset or operator"
    export.add_argument("--role", action="append", required=True, help=f"{roles}; may be given several times")
    export.add_argument("out", metavar="OUT", help="the folder to write, for that machine; or one to bring up to date")
    revoke.add_argument("--role", required=True, help=roles)


def add_token(token: argparse.ArgumentParser) -> None:
    """The flags of `dps token`."""
    token.epilog = "example: dps token --chief 10.0.0.1:2220 --uses 4 --ttl 1h"
    add = token.add_argument
    add("--chief", default=DEFAULT_CHIEF, help=f"the chief's address (default {DEFAULT_CHIEF})")
    add("--role", default="worker", choices=("worker", "reader"), help="what it lets its user be (default worker)")
    add("--uses", type=int, default=1, help="how many processes may join with it (default 1)")
    add("--ttl", default="10m", help="how long they may: 90s, 10m, 2h, 1d (default 10m)")
    add_folder(token)
    token.set_defaults(run=run_token)


def run_token(args: argparse.Namespace) -> int:
    from dps.launch.commands.operating import make_token

    with tell_if_slow(f"asks the chief at {args.chief}"):
        token = make_token(args.chief, args.role, args.uses, args.ttl)
    print(token)
    return 0


def add_launch(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `dps launch`."""
    launch = commands.add_parser(
        "launch", help="run a program or an experiment file on a cluster, here or where --on says",
        epilog=f"examples: dps launch --ps 2 --workers 4 train.py, dps launch experiment.yaml --detach; "
        f"{EXIT_CODES}",
    )  # fmt: skip
    add = launch.add_argument
    add("--ps", type=int, help="number of ps (default 1)")
    add("--workers", type=int, help="number of workers (default 1)")
    add("--update", help="the update mode: async (the default), sync, sync:sum, bounded:S or local:H")
    add("--restarts", type=int, help="how often a ps or chief that died is restarted (default 1)")
    add("--pin", action="store_true", help="keep each ps and worker on processors of its own")
    add("--threads", default="", help="threads that share an update on each ps, or auto (the default)")
    add("--device", default="", help="where each ps keeps its variables by default: cpu, or for example gpu:0")
    add(
        "--checkpoint-root", metavar="FOLDER",
        help="write checkpoints only below this folder (default: below OUTPUT_DIR if others may join the run)",
    )  # fmt: skip
    add_addresses(launch)
    add(
        "--serve", action="append", default=[], metavar="MODULE",
        help="have the workers run functions of this module for others; the program, if there is one, runs once and "
        "schedules them",
    )  # fmt: skip
    evaluator = add("--evaluator", help="FILE of a program that evaluates beside the training, or 'FILE ARGUMENTS'")
    evaluator.complete = FILES  # type: ignore[attr-defined]
    add("--dataset", metavar="FILE:NAME", help="what dataset tasks read for all workers, or 'FILE:NAME ARGUMENTS'")
    add("--datasets", type=int, help="number of tasks that read the dataset, each its part (default 1)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the experiment file")
    add(
        "--on",
        choices=engines.names(),
        help="where the tasks run (default: ssh if a file has hosts, else local, this machine)",
    )  # fmt: skip
    add("--detach", action="store_true", help="keep the run in the background; dps logs, status and kill reach it")
    resume = add("--resume", metavar="ID", help="go on from this run's checkpoint, with its program and OUTPUT_DIR")
    resume.complete = RUNS  # type: ignore[attr-defined]
    add("--metric", metavar="NAME", help="sort the table of several runs by this; NAME:max: the largest first")
    add_json(launch)
    program = add(
        "program", nargs="?",
        help="FILE or package.module, run on every worker; then -- and its arguments. Or an experiment file, FILE.yaml",
    )  # fmt: skip
    program.complete = FILES  # type: ignore[attr-defined]
    launch.set_defaults(run=run_launch)


def run_bench(arguments: list[str]) -> int:
    for variable in THREADS:  # before numpy is imported, because its libraries read them only once
        os.environ.setdefault(variable, "1")
    return int(importlib.import_module("dps.monitor.bench").main(arguments))


def run_launch(args: argparse.Namespace) -> int:
    from dps.launch.commands.launch import launch

    env = addresses(args)
    if args.checkpoint_root:
        env["DPS_CHECKPOINT_ROOT"] = os.path.abspath(args.checkpoint_root)
    return launch(args, env)


def run_doctor(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    with tell_if_slow(f"checks the way to {args.chief}" if args.chief else "checks this machine"):
        if args.chief:
            from dps.monitor.way import ConnectionCheck

            found = ConnectionCheck(args.chief, dict(os.environ)).run_checks()
        else:
            from dps.monitor.doctor import findings

            found = findings()
    if args.json:
        print(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        print("\n".join(map(str, found)))
    return 1 if any(finding.wrong for finding in found) else 0


def run_warm(args: argparse.Namespace) -> int:
    from dps.kernels.jit import compiled_here
    from dps.ps.warm import warm_all
    from dps.transport.current import runtime

    clock = runtime()
    began = clock.now()

    def progress(what: str, number: int, of: int) -> None:
        print(f"{number:2} of {of}: {what}", flush=True)

    warm_all(progress)
    made = compiled_here()
    where = ", ".join(made.folders) or "no folder, for none can be written; set NUMBA_CACHE_DIR to one"
    print(
        f"{made.versions} kernels ready in {clock.now() - began:.1f} s: {made.versions - made.from_cache} compiled, "
        f"{made.from_cache} had been compiled before; kept in {where}"
    )
    return 0


def run_simulate(args: argparse.Namespace) -> int:
    from dps.launch.commands.simulate import simulate
    from dps.process.functions import load
    from dps.transport.sim import Compute

    with tell_if_slow(f"simulates {args.ps} ps and {args.workers} workers"):
        run = simulate(
            load(args.function), ps=args.ps, workers=args.workers, seed=args.seed, update=args.update,
            compute=Compute(args.compute, 0.1), calibration=None if args.calibration == "none" else args.calibration,
        )  # fmt: skip
    if args.trace:
        print("\n".join(map(str, run.trace)))
    print(run)
    for task, result in enumerate(run.results):
        print(f"worker:{task} returned {result!r}")
    for name, error in run.errors.items():
        print(f"{name}: {error}")
    for path in run.save(args.save) if args.save else ():
        print(f"saved {path}")
    return 1 if run.errors else 0


def run_completion(args: argparse.Namespace) -> int:
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise MissingExtra(
            "dps completion needs shtab, which is not installed; pip install 'dps[completion]'"
        ) from None
    runs = {"bash": RUNS_OF_BASH, "zsh": RUNS_OF_ZSH}
    print(shtab.complete(parser(), shell=args.shell, preamble=runs))
    return 0


def run_keys(args: argparse.Namespace) -> int:
    from dps.transport.keys import files as key_files

    folder = args.folder
    if args.what == "new":
        key_files.new(folder)
        print(
            f"keys of every role are in {folder}; for a machine of workers: dps keys export {folder} --role worker OUT"
        )
    elif args.what == "export":
        key_files.export(folder, args.role, args.out)
        print(
            f"{args.out} has the private keys of {', '.join(args.role)}, and every public key; tasks take it as --keys"
        )
    elif args.what == "rotate":
        number = key_files.rotate(folder)
        print(f"{folder} has set {number}, too; export it to every machine, then revoke the older pair of each role")
    else:
        left = key_files.revoke(folder, args.role)
        what = "a newer one is left" if left else "none is left, so nobody can take that role"
        print(f"the oldest pair of {args.role} is gone from {folder}; {what}; export the folder to every machine anew")
    return 0


def run() -> None:
    """The console script."""
    sys.exit(main())


__all__ = ["DpsError", "main", "parser", "run"]

if __name__ == "__main__":
    run()
