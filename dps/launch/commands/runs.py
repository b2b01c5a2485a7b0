"""The commands about runs: `dps list`, `status`, `logs`, `monitor`, `watch`, `trace`, `kill`, `prune` and `init`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

from dps.errors import ConfigError, DeadlineExceeded, DpsError
from dps.launch.supervision.interrupts import GRACE_S
from dps.launch.supervision.output import tell_if_slow
from dps.transport.clock import now, pause, wall

SHOWN = 20
"""How many runs `dps list` shows."""
FOLLOW_S = 0.2
KILL_S = 30.0
"""How long a run may take, after its grace, until it is over."""
SILENT_S = 1.0
"""How long `dps kill` waits before it says for what."""
MONITOR_S = 2.0


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands about runs to those of `dps`."""
    listing = commands.add_parser("list", help="list runs of dps launch", epilog="example: dps list")
    listing.add_argument("--all", action="store_true", help=f"all runs, not only the {SHOWN} newest")
    listing.set_defaults(run=run_list)
    logs = commands.add_parser("logs", help="print what the tasks of a run have printed", epilog=LOGS_EXAMPLE)
    add_run(logs)
    logs.add_argument("--task", action="append", help="only this task, such as worker.1 or chief; may be repeated")
    logs.add_argument("--follow", action="store_true", help="go on until the run is over")
    logs.add_argument("--since", default="", help="only lines since then: 90s, 10m, 2h, 1d ago, or a time")
    logs.set_defaults(run=run_logs)
    monitor = commands.add_parser("monitor", help="show what each task of a run does and uses", epilog=MONITOR_EXAMPLE)
    add_run(monitor)
    monitor.add_argument("--once", action="store_true", help="print one table; the default where stdout is no terminal")
    monitor.set_defaults(run=run_monitor)
    watch = commands.add_parser("watch", help="show a run as a page in the browser", epilog=WATCH_EXAMPLE)
    add_run(watch)
    watch.add_argument("--port", type=int, default=0, help="the page's port on 127.0.0.1 (default: a free one)")
    watch.add_argument(
        "--metrics-token-file", metavar="FILE",
        help="also answer Prometheus at /metrics, if it shows the token in this file; one that is not there is made",
    )  # fmt: skip
    watch.set_defaults(run=run_watch)
    trace = commands.add_parser("trace", help="write what all tasks of a run do as one trace", epilog=TRACE_EXAMPLE)
    traced = trace.add_argument(
        "id", nargs="?", metavar="ID|ADDRESS",
        help="a run's number, or a chief's address (default: the only run that goes on)",
    )  # fmt: skip
    traced.complete = RUNS
    trace.add_argument("--steps", type=int, default=100, help="how many global steps (default 100)")
    trace.add_argument("--seconds", type=float, default=60.0, help="the longest time that it takes (default 60)")
    trace.add_argument("--out", metavar="FILE", help="the file to write (default trace-ID-step-STEP.json)")
    trace.add_argument("--keys", metavar="DIR", help="the folder of keys, if the run has keys (DPS_KEYS)")
    trace.set_defaults(run=run_trace)
    kill = commands.add_parser("kill", help="end runs: in order, and by force after a grace", epilog=KILL_EXAMPLE)
    ids = kill.add_argument(
        "ids", nargs="+", metavar="ID|ADDRESS", help="the runs' numbers, as dps list shows them, or a chief's address"
    )
    ids.complete = RUNS
    kill.add_argument("--keys", metavar="DIR", help="the folder of keys, if a run has keys (DPS_KEYS)")
    kill.add_argument("--grace", type=float, default=GRACE_S, help=f"seconds until tasks are killed ({GRACE_S:g})")
    kill.set_defaults(run=run_kill)
    prune = commands.add_parser("prune", help="remove the folders of runs that are over", epilog=PRUNE_EXAMPLE)
    prune.add_argument("--older-than", metavar="AGE", help="those that ended longer ago than this: 12h, 30d")
    prune.add_argument("--keep", type=int, metavar="N", help="leave the N newest of those that are over")
    prune.add_argument("--dry-run", action="store_true", help="remove nothing; print what would be removed")
    prune.set_defaults(run=run_prune)
    init = commands.add_parser("init", help="write an experiment file with comments", epilog="example: dps init")
    init.add_argument("file", nargs="?", default="experiment.yaml", help="its name (default experiment.yaml)")
    init.set_defaults(run=run_init)
    manifest = commands.add_parser(
        "manifest", help="print an experiment file for another engine", epilog=MANIFEST_EXAMPLE
    )
    manifest.add_argument("engine", choices=["kubernetes"], help="kubernetes: a JobSet")
    manifest.add_argument("file", help="the experiment file")
    manifest.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the file")
    manifest.set_defaults(run=run_manifest)
    for command in (listing, monitor, prune):
        add_json(command)


RUNS = {"bash": "_dps_runs", "zsh": "_dps_runs"}
"""How each shell completes the number of a run; functions of `dps completion`."""
PRUNE_EXAMPLE = "example: dps prune --older-than 30d --keep 10 --dry-run"
LOGS_EXAMPLE = "examples: dps logs --follow, dps logs 4 --task worker.1 --since 10m"
WATCH_EXAMPLE = "examples: dps watch, dps watch 4 --port 8765 --metrics-token-file metrics.token"
MONITOR_EXAMPLE = "examples: dps monitor, dps monitor 4"
MANIFEST_EXAMPLE = "example: dps manifest kubernetes experiment.yaml | kubectl apply -f -"
TRACE_EXAMPLE = "examples: dps trace 4 --steps 100, dps trace 10.0.0.1:2220 --keys keys"
KILL_EXAMPLE = "examples: dps kill 4, dps kill 10.0.0.1:2220 --keys keys"


def add_run(command: argparse.ArgumentParser) -> None:
    """The number of a run, of commands that take the only one without it."""
    help = "the run's number, as dps list shows it (default: the only run that goes on)"
    run = command.add_argument("id", nargs="?", help=help)
    run.complete = RUNS  # type: ignore[attr-defined]


def add_json(command: argparse.ArgumentParser) -> None:
    """The flag of commands that print a table."""
    command.add_argument("--json", action="store_true", help="print JSON, not a table")


def run_list(args: argparse.Namespace) -> int:
    from dps.launch.runs import folder, table
    from dps.launch.runs.view import read_run

    where, at = folder.root(), wall()
    with tell_if_slow(f"reads the runs in {where}"):
        numbers = folder.readable(where)
        views = [
            read_run(os.path.join(where, str(number)), at) for number in (numbers if args.all else numbers[-SHOWN:])
        ]
    if args.json:
        table.print_json([view.as_dict() for view in views])
    elif not views:
        print(f"no runs in {where}; dps launch makes one")
    else:
        print(table.text(table.RUN_COLUMNS, [table.run_row(view, at) for view in views]))
        if len(views) < len(numbers):
            print(f"and {len(numbers) - len(views)} older runs: dps list --all")
    if not args.json and (others := len(folder.numbers(where)) - len(numbers)):
        print(f"and {others} {'run' if others == 1 else 'runs'} of other accounts")
    return 0


def run_status(args: argparse.Namespace) -> int:
    """`dps status`: a run by its number, the cluster of a chief, or what goes on here."""
    from dps.launch.runs import status

    run = args.run_or_chief
    if run and args.chief:
        raise ConfigError(f"got {run} and --chief {args.chief}; give one run's number or one address")
    if run and run.isdecimal():
        return status.show_run(folder_of(run), args.json)
    if run or args.chief:
        return status.show_cluster(run or args.chief, args.json)
    return status.show_live(args.json)


def folder_of(run: str | None, command: str = "status") -> str:
    """The folder of a run by its number; without one, that of the only run that goes on."""
    from dps.launch.runs import folder
    from dps.launch.runs.view import find_live_runs, read_run

    if run is not None:
        return folder.find(run)
    where = folder.root()
    found = find_live_runs(where, wall())
    if len(found) == 1:
        return found[0].path
    if found:
        names = ", ".join(f"{view.id} ({view.asked.get('name')})" for view in found)
        raise ConfigError(f"{len(found)} runs go on: {names}; say which: dps {command} {found[-1].id}")
    if not (known := folder.readable(where)):
        raise ConfigError(f"no runs in {where}; dps launch makes one")
    newest = read_run(os.path.join(where, str(known[-1])), wall())
    told = f"{newest.id} ({newest.asked.get('name')}, {newest.state})"
    raise ConfigError(f"no run goes on; the newest is {told}: dps {command} {newest.id}")


def run_logs(args: argparse.Namespace) -> int:
    from dps.launch.runs.logs import Reader, task_name, tasks_with_logs
    from dps.launch.runs.states import LOST
    from dps.launch.runs.times import since, utc
    from dps.launch.runs.view import read_run
    from dps.launch.supervision.output import Output, check_reader, full_name

    path, output = folder_of(args.id, "logs"), Output()
    run = os.path.basename(path)
    logs = os.path.join(path, "logs")
    tasks = [task_name(text) for text in args.task] if args.task else None
    known = {*read_run(path, wall()).tasks, *tasks_with_logs(logs)}
    if tasks is not None and (wrong := [task for task in tasks if task not in known]):
        raise ConfigError(f"run {run} has no task {wrong[0]!r}; it has {', '.join(sorted(known))}")
    reader = Reader(logs, tasks, utc(since(args.since, wall())) if args.since else "")
    while True:
        view = read_run(path, wall())  # before the lines: those that come before its end are read after it
        for entry in reader.read_new():
            output.write_line(full_name(run, entry.task), entry.text)
        output.stream.flush()
        if view.is_over or not args.follow:
            break
        pause(FOLLOW_S)
        check_reader(output.stream)
    if view.state == LOST:
        for task in tasks or ["dps"]:
            output.print_line(full_name(run, task), f"the log ends here: {view.values['reason']}")
    return 0


def run_monitor(args: argparse.Namespace) -> int:
    from dps.launch.runs import table
    from dps.launch.runs.monitor import COLUMNS, Monitor, shown
    from dps.launch.runs.table import screen
    from dps.launch.runs.view import read_run

    path = folder_of(args.id, "monitor")
    view = read_run(path, wall())
    monitor = Monitor()
    drawn = screen() if sys.stdout.isatty() and not args.once and not args.json else None
    try:
        if not view.is_over:
            with tell_if_slow(f"asks the chief of run {view.id} and its ps"):
                monitor.rows(view)  # rates need two readings
            pause(min(1.0, MONITOR_S))
        while True:
            view = read_run(path, wall())
            rows = monitor.rows(view)
            head = f"run {view.id} {view.asked.get('name', '')}: {view.state}"
            head += f"\n{monitor.why}" if monitor.why else ""
            if args.json:
                table.print_json({"id": view.id, "state": view.state, "why": monitor.why, "tasks": rows})
            elif drawn is None:
                print(f"{head}\n{table.text(COLUMNS, shown(rows))}")
            else:
                drawn.show(head, COLUMNS, shown(rows))
            if drawn is None or view.is_over:
                return 0
            pause(MONITOR_S)
    finally:
        if drawn is not None:
            drawn.close()
        monitor.close()


def run_watch(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"got --port {args.port}; wanted 1 to 65535, or 0 for a free one")
    path = folder_of(args.id, "watch")
    from dps.launch.commands.watch import watch_run

    return watch_run(path, args.port, args.metrics_token_file)


def run_trace(args: argparse.Namespace) -> int:
    from dps.launch.commands import trace

    if args.id is not None and ":" in args.id:
        return trace.trace_chief(args.id, "run", args)
    return trace.trace_run(folder_of(args.id, "trace"), args)


def run_kill(args: argparse.Namespace) -> int:
    from dps.launch.runs import folder
    from dps.launch.runs.control import ask_to_end, wait_for_end

    if not 0 <= args.grace < math.inf:
        raise ConfigError(f"got --grace {args.grace:g}; wanted seconds from 0")
    chiefs = [given for given in args.ids if ":" in given]
    paths = [folder.find(run) for run in args.ids if run not in chiefs]
    for chief in chiefs:
        from dps.launch.commands.operating import end_run

        end_run(chief, args.grace, SILENT_S, KILL_S)
        print(f"the run of {chief}: ended")
    for path in paths:
        ask_to_end(path, args.grace)
    for path in paths:
        view = wait_for_end(path, now() + SILENT_S)
        if not view.is_over:
            print(f"run {view.id} is ending; tasks that still run after {args.grace:g} s are killed", file=sys.stderr)
            view = wait_for_end(path, now() + args.grace + KILL_S, force=True)
        if not view.is_over:
            raise DeadlineExceeded(
                f"run {view.id} still runs {args.grace + KILL_S:g} s after it was told to end; kill process "
                f"{view.values['keeper']['pid']} on {view.values['keeper']['host']}, which keeps it"
            )
        print(f"run {view.id}: {view.state}")
    return 0


def run_prune(args: argparse.Namespace) -> int:
    from dps.launch.runs import control as prune
    from dps.launch.runs import folder, table
    from dps.launch.runs.times import duration, local
    from dps.transport.private_folders import remove_left

    if args.older_than is None and args.keep is None:
        raise ConfigError(
            "got neither --older-than nor --keep; wanted which runs: --older-than 30d, --keep 10, or both"
        )
    if args.keep is not None and args.keep < 0:
        raise ConfigError(f"got --keep {args.keep}; wanted a number from 0")
    older_than_s = None if args.older_than is None else duration("--older-than", args.older_than)
    root, rows, did = folder.root(), list[dict[str, Any]](), "would remove" if args.dry_run else "removed"
    left = 0
    try:
        for row in prune.remove_runs(prune.choose_runs(root, older_than_s, args.keep or 0, wall()), not args.dry_run):
            rows.append(row)
            if not args.json:
                about = f"{row['name']}, {row['state']}, ended {local(row['ended'])}"
                print(f"{did} run {row['id']} ({about}): {prune.size_text(row['nbytes'])}", flush=True)
        if not args.dry_run:
            prune.remove_leftovers(root)
            left = remove_left()
    except OSError as error:
        raise DpsError(f"{error.filename} cannot be removed: {error.strerror}") from None
    if args.json:
        table.print_json(rows)
    else:
        freed = prune.size_text(sum(row["nbytes"] for row in rows))
        print(f"{did} {len(rows)} run{'' if len(rows) == 1 else 's'}, {freed}, from {root}")
        if left:
            print(f"removed {left} temporary folder{'' if left == 1 else 's'} of processes that were killed")
    return 0


def run_manifest(args: argparse.Namespace) -> int:
    import importlib

    from dps.launch.experiment.experiment import load
    from dps.launch.experiment.kubernetes import manifests

    made = manifests(load(args.file, args.set))
    if sys.stdout.isatty() and any(each["kind"] == "Secret" for each in made):
        print("dps: what follows has private keys; it is for a pipe to kubectl apply -f -", file=sys.stderr)
    print(importlib.import_module("yaml").safe_dump_all(made, sort_keys=False, width=120), end="")
    return 0


def run_init(args: argparse.Namespace) -> int:
    from dps.launch.experiment.template import PROGRAM, TEMPLATE

    if not args.file.endswith((".yaml", ".yml")):  # dps launch would take it for a program
        raise ConfigError(f"got {args.file!r:.80}; wanted a name that ends in .yaml, as experiment.yaml")
    program = os.path.join(os.path.dirname(args.file), "train.py")
    try:
        with open(args.file, "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
        made = [args.file]
        if not os.path.exists(program):
            with open(program, "x", encoding="utf-8") as file:
                file.write(PROGRAM)
            made.append(program)
    except FileExistsError:
        raise ConfigError(f"{args.file} is there already; give another name: dps init NAME.yaml") from None
    except OSError as error:
        raise ConfigError(f"{args.file} cannot be written: {error.strerror}") from None
    print(f"wrote {' and '.join(made)}; start the experiment with: dps launch {args.file}")
    return 0
