"""Runs one task as a process: `python -m dps.role --job ps --task 0`. Only entry points like this read configuration.

The cluster comes from the first of: --cluster, --ps_hosts/--worker_hosts, TF_CONFIG or DPS_CLUSTER, Slurm, --chief;
with none of them the chief is at 127.0.0.1:2220, and its ps and workers join there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dps.errors import ConfigError
from dps.launch.programs.program import handle_run_end, run_program
from dps.launch.supervision.outcome import LOST, TEARDOWN
from dps.process import config, descriptors
from dps.process.flags import EXIT_CODES, Parser, add_addresses, addresses, guarded

if TYPE_CHECKING:
    from dps.cluster.spec import ClusterSpec, Task
    from dps.data.serving import ServedPart
    from dps.task.server import Server

DEFAULT_CHIEF = "127.0.0.1:2220"
JOBS = ("chief", "ps", "worker", "evaluator", "dataset")
OF_ONE_JOB = {
    "serve": "worker", "owned": "chief", "restarted": "chief", "device": "ps", "threads": "ps", "datasets": "dataset",
}  # fmt: skip
"""Flags that only tasks of one job read."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def parser() -> Parser:
    """The flags of a task; the reference trainer's spellings are aliases."""
    made = Parser(prog="python -m dps.role", description=__doc__, epilog=EXIT_CODES)
    add = made.add_argument
    add("--job", "--job_name", help="chief (or master), ps, worker, evaluator or dataset")
    add("--task", "--task_index", type=int, help="number within the job; without it the only one, or the chief chooses")
    add("--cluster", help="JSON text, or a .json, .toml or .yaml file: {'ps': ['host:port'], 'worker': [...]}")
    add("--ps_hosts", default="", help="comma-separated host:port of the ps")
    add("--worker_hosts", default="", help="comma-separated host:port of the workers")
    add("--chief_hosts", default="", help="host:port of the chief; without it worker 0 is the chief")
    add("--chief", help="join the cluster whose chief has this address, host:port; - reads it from stdin")
    add(
        "--join",
        metavar="-|@FILE",
        help="join by what dps token printed: a line on stdin, or in a file (DPS_TOKEN_FILE)",
    )
    add_addresses(made)
    add("--workers", type=int, help="on the chief: how many workers are expected")
    add("--ps", type=int, help="on the chief: how many ps are expected")
    add("--datasets", type=int, help="on a dataset task: how many there are; each serves its part (default 1)")
    add("--resolver", help="read the cluster from an engine: kubernetes, mpi, sge, skypilot, slurm or torchrun")
    add("--jobs", help="with --resolver: how many of its processes each job takes, such as ps=1,worker=3")
    add("--device", default="", help="on a ps: where it keeps its variables by default: cpu, or for example gpu:0")
    add(
        "--checkpoint-root",
        metavar="FOLDER",
        help="on a chief or ps: read and write checkpoints only below this folder (default: wherever a session asks, "
        "if nobody else may join the run; else a chief needs one)",
    )
    add("--threads", default="", help="on a ps: threads that share an update of 8 MB or more, or auto (the default)")
    add("--update", help="async, sync, sync:sum, bounded:S or local:H: the update mode of sessions that name none")
    add("--cpus", help="run this task on these processors only, for example 0,2-3")
    add(
        "--program",
        help="a worker's or evaluator's program: FILE, package.module, or either with :function; then -- and its "
        "arguments. Of a dataset task, FILE:NAME or package.module:NAME: a dataset, or a function that returns one",
    )
    add(
        "--serve", action="append", default=[], metavar="MODULE",
        help="on a worker without a program: run functions of this module (package.module, FILE, or either:function) "
        "for sessions and coordinators; may be given several times",
    )  # fmt: skip
    add("--owned", action="store_true", help="on the chief: stay when the workers have left, until told to end")
    add("--restarted", action="store_true", help="on the chief: continue the run of a chief that died at this address")
    add("--verbose", action="store_true", help="show tracebacks of dps's own errors, and debug logs")
    add(
        "--log-level",
        default="INFO",
        type=str.upper,
        choices=LEVELS,
        metavar="LEVEL",
        help="level of dps's log on stderr (default INFO)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run a task to its end; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: begin(given), "--verbose" in given)


def begin(given: Sequence[str]) -> int:
    """Run the task of a command line, with its log and its limits set."""
    args = parser().parse_command(given)
    import logging

    level = "DEBUG" if args.verbose else args.log_level
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    die_with_the_launcher()
    config.keep_large_blocks()
    if "DPS_LAUNCHED" in os.environ:
        config.launched.set()
    descriptors.check("this task", descriptors.needed(args.job or "chief", 1, 1))  # before the modules are imported
    return run(args, args.arguments)


def run(args: argparse.Namespace, rest: list[str]) -> int:
    """Serve, or run the program, as the task that flags and environment name."""
    if args.cpus is not None:
        config.pin(config.parse_cpus(args.cpus))  # before there are threads
    if args.update:
        from dps.training.update_modes import parse_flag

        parse_flag(args.update)
    from dps.cluster.identity import check_number, tf_config_of

    for name in ("task", "workers", "ps", "datasets"):
        check_number(f"--{name} ", getattr(args, name))
    if args.join or (os.environ.get("DPS_TOKEN_FILE") and not args.chief):
        from dps.launch.programs.joining import join

        if args.job in (None, "worker"):
            check_serves(args, addresses(args))
        join(args)
    if args.chief == "-":
        args.chief = chief_from_stdin(args.job)
    environ = task_environment(args)
    job = environ["DPS_JOB"]
    if job not in JOBS:
        raise ConfigError(f"--job {job} cannot be run; wanted {', '.join(JOBS[:-1])} or {JOBS[-1]}")
    check_flags(args, job)
    if job == "dataset":
        from dps.data.serving import load_part

        return serve(environ, args, load_part(args.program, rest, environ, args.datasets))
    root = environ.get("DPS_CHECKPOINT_ROOT")
    if root and job in ("chief", "ps"):  # a program may write elsewhere what is its own
        from dps.checkpoint.storage import LocalStorage
        from dps.transport.runtime import real_runtime

        real_runtime().storage = LocalStorage(root, may_be_missing=not args.checkpoint_root)
    if job in ("chief", "ps"):
        return serve(environ, args)
    if not args.program and job == "evaluator":
        raise ConfigError("an evaluator runs a program that follows the run, as dps.follow does; give it a --program")
    check_serves(args, environ)
    os.environ.pop("TF_CONFIG", None)
    os.environ.update(environ | tf_config_of(environ))
    drain_on_signal()
    if config.launched.is_set():
        handle_run_end()
    code = run_program(args.program, rest, args.verbose) if args.program else serve_functions(args.serve)
    if job == "worker" and not config.trains.is_set():
        tell_the_chief(environ, code)
    return code


def chief_from_stdin(job: str) -> str:
    """The chief's address, the only line on stdin. Blocks; imports the task's modules first. Ends a launched task that
    gets none."""
    with config.loading():
        own = {"ps": "dps.ps.server", "dataset": "dps.data.serving"}.get(job, "dps.client.session")
        for name in ("dps.task.server", "dps.transport.runtime", own):
            importlib.import_module(name)
    with open(0, closefd=False) as stdin:
        chief = stdin.readline().strip()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if not chief and config.launched.is_set():
        sys.exit(LOST)  # the launcher ends the run before it began, and says why
    if not chief:
        raise ConfigError("got --chief - and no address on stdin; the launcher has ended, or none was there")
    return chief


def tell_the_chief(environ: dict[str, str], code: int) -> None:
    """Tell the chief not to wait for a worker whose program made no session that trains; impossible if its task is not
    known. One that has read values, such as a `Follower`, has done its part, as one that served functions."""
    if environ["DPS_TASK"] == "":
        return
    from dps.launch.programs.leaving import report_end
    from dps.messages.runs import SERVED

    chief, task = environ["DPS_CHIEF"], int(environ["DPS_TASK"])
    if environ["DPS_CLUSTER"]:
        from dps.cluster.resolve import load_cluster

        cluster = load_cluster(environ["DPS_CLUSTER"])
        lead = cluster.chief_task()
        if lead is None or (lead.job, lead.index) == ("worker", task):
            return  # this task would have been the chief itself
        chief = cluster.task_address(lead.job, lead.index)
    has_served = (config.serves.is_set() or config.session_opened.is_set()) and not code
    report_end(chief, task, SERVED if has_served else f"ended with exit code {code}", code)


def task_environment(args: argparse.Namespace) -> dict[str, str]:
    """The environment for `Server.from_env`: from flags, then, where no flag names the task, from the environment that
    does, then defaults. A checkpoint root in the environment always counts."""
    from dps.cluster.spec import ClusterSpec, Task, job_name

    cluster, own = ClusterSpec({}), None
    if args.cluster:
        from dps.cluster.resolve import load_cluster

        cluster = load_cluster(args.cluster)
    elif args.ps_hosts or args.worker_hosts:
        cluster = ClusterSpec.from_flags(args.ps_hosts, args.worker_hosts, args.chief_hosts)
    elif args.resolver or args.jobs:
        cluster, own = from_resolver(args)
    elif not args.chief and any(name in os.environ for name in ("TF_CONFIG", "DPS_CLUSTER", "SLURM_STEP_NUM_TASKS")):
        from dps.cluster.resolve import resolve

        cluster, own = resolve()
    if cluster and args.chief:
        raise ConfigError(
            f"got --chief {args.chief} and the addresses of a cluster, which name its chief; give one of them"
        )
    given = args.job and job_name(args.job)
    own = None if given and own and own.job != given else own
    named = os.environ if not given and own is None else {}
    job = given or (own.job if isinstance(own, Task) else named.get("DPS_JOB"))
    task = args.task if args.task is not None else (own.index if isinstance(own, Task) else None)
    if not job:
        raise ConfigError(f"which job is this task of? Give --job {', '.join(JOBS)} (or TF_CONFIG)")
    job = job_name(job)
    index = named.get("DPS_TASK") or ("0" if job == "evaluator" else "")
    environ = {"DPS_JOB": job, "DPS_TASK": index if task is None else str(task)}
    if cluster:
        import json

        environ["DPS_CLUSTER"] = json.dumps(cluster.as_dict())
        environ["DPS_CHIEF"] = ""
    else:
        environ["DPS_CLUSTER"] = ""
        environ["DPS_CHIEF"] = args.chief or named.get("DPS_CHIEF") or DEFAULT_CHIEF
    flags = {
        "DPS_WORKERS": args.workers, "DPS_PS": args.ps, "DPS_UPDATE": args.update, "DPS_DEVICE": args.device or None,
        "DPS_THREADS": args.threads or None,
    }  # fmt: skip
    settings = {name: named.get(name) if value is None else value for name, value in flags.items()}
    settings["DPS_CHECKPOINT_ROOT"] = args.checkpoint_root or os.environ.get("DPS_CHECKPOINT_ROOT")
    listens = addresses(args)
    if job == "chief" and not cluster:
        from dps.cluster.address import check_address
        from dps.cluster.identity import bound

        check_address(environ["DPS_CHIEF"])
        listens.setdefault("DPS_BIND", environ["DPS_CHIEF"])
        if args.chief and listens["DPS_BIND"] != args.chief:
            listens["DPS_BIND"] = bound(listens["DPS_BIND"], args.chief)
            listens.setdefault("DPS_ADVERTISE", args.chief)
    environ |= listens | {name: str(value) for name, value in settings.items() if value not in (None, "")}
    from dps.cluster.identity import number_of

    for name in ("DPS_TASK", "DPS_WORKERS", "DPS_PS"):
        number_of(environ, name)
    return environ


def from_resolver(args: argparse.Namespace) -> tuple[ClusterSpec, Task | None]:
    """The cluster and the task that `--resolver` finds."""
    from dps.cluster.resolve import run_resolver
    from dps.cluster.resolvers.ranks import parse_jobs

    if not args.resolver:
        raise ConfigError("got --jobs without --resolver; name the engine, such as --resolver slurm")
    cluster, own = run_resolver(args.resolver, jobs=parse_jobs(args.jobs) if args.jobs else None)
    if own is None and not args.job:
        raise ConfigError(f"--resolver {args.resolver} finds no task for this process; give --job and --task")
    return cluster, own


def serve(environ: dict[str, str], args: argparse.Namespace, part: ServedPart | None = None) -> int:
    """Run a chief, ps or dataset task until the run ends, or a signal ends it."""
    with config.loading():
        from dps.task.server import Server

        signals = stop_on_signal()
        server = Server.from_env(environ, owned=args.owned, restarted=args.restarted)
        name = server.name
        print(f"dps {name} at {server.address}\n", end="", flush=True)  # in one piece among other lines
        if server.job == "ps":
            from dps.ps.warm import start

            start()  # meanwhile the node answers on its own thread
        serving = None if part is None else part.serve(server)
    heard = 0
    while (code := server.join(0.2)) is None:
        if name != server.name:  # the chief has assigned the ps's index
            name = server.name
            print(f"dps {name} at {server.address}\n", end="", flush=True)  # in one piece among other lines
        if len(signals) > heard:
            heard = len(signals)
            end(server, signals)
    if code and server.reason:
        print(f"dps: {server.reason}", file=sys.stderr)
    if serving is not None and serving.error is not None:
        print(f"dps: {serving.error}", file=sys.stderr)
        return code or 1
    return code or 0


def check_flags(args: argparse.Namespace, job: str) -> None:
    """Raise ConfigError for flags of another job. Tasks whose job the environment names have one command line."""
    if not args.job:
        return
    if args.program and job in ("chief", "ps"):
        raise ConfigError(f"a {job} runs no program; leave --program out")
    if wrong := [name for name, reads in OF_ONE_JOB.items() if reads != job and getattr(args, name)]:
        raise ConfigError(f"a {job} has no --{wrong[0]}, which is for a {OF_ONE_JOB[wrong[0]]}; leave it out")


def check_serves(args: argparse.Namespace, environ: dict[str, str]) -> None:
    """Raise ConfigError for a worker that is to do nothing, two things, or to serve other machines."""
    if bool(args.program) == bool(args.serve):
        got = "got both" if args.program else "got neither"
        raise ConfigError(
            f"a worker runs a --program, or serves others the functions of a module (--serve MODULE); {got}"
        )
    if args.serve and environ.get("DPS_TRUSTED_NETWORK", "0") not in ("", "0"):
        raise ConfigError("got --serve on a trusted network: without keys, a worker serves on its own machine only")


def serve_functions(entries: list[str]) -> int:
    """Run functions for others, as the task that the environment names, until the run ends or a signal ends it."""
    with config.loading():
        from dps.calls.functions import ServedFunctions
        from dps.coordinator.worker import Worker
        from dps.task.server import Server

        served = ServedFunctions(entries)
        with Server.from_env() as server:
            print(f"dps {server.name} serves {', '.join(entries)} at {server.address}\n", end="", flush=True)
            Worker(server, served).run()
    if server.exit_code and server.reason:
        print(f"dps: {server.reason}", file=sys.stderr)
    return server.exit_code or 0


def end(server: Server, signals: list[int]) -> None:
    """React to the signals of a chief or ps: the first one ends it in order, the second one at once."""
    if TEARDOWN in signals:
        server.end_now()
    elif len(signals) == 1:
        server.end_in_order(f"was told to end ({signal.Signals(signals[0]).name})")
    elif len(signals) == 2:
        server.end_now(130)
    else:
        os._exit(130)


def stop_on_signal() -> list[int]:
    """Handle SIGTERM (and, without a launcher, Ctrl-C); returns the list to which the handler appends signals.

    The handler takes no locks, because it may interrupt code that holds them.
    """
    seen: list[int] = []

    def stop(number: int, _: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN if "DPS_LAUNCHED" in os.environ else stop)
    signal.signal(TEARDOWN, stop)
    unblock()
    return seen


def drain_on_signal() -> None:
    """Handle Ctrl-C and SIGTERM: the first one lets the training loop end, the second one ends the process."""

    def stop(number: int, _: object) -> None:
        if config.stop_requested.is_set():
            os._exit(130)
        config.stop_requested.set()
        alone = number == signal.SIGINT and "DPS_LAUNCHED" not in os.environ
        more = b"; Ctrl-C once more ends the program at once" if alone else b""
        os.write(2, b"dps: stopping after this step" + more + b"\n")  # print is unsafe in a handler

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    unblock()


def unblock() -> None:
    """Unblock the signals that the launcher blocked until handlers exist."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def die_with_the_launcher() -> None:
    """End a launched task when its launcher ends in any way (on Linux; elsewhere the launcher ends its tasks)."""
    launcher = os.environ.get("DPS_LAUNCHER") or "0"
    if not launcher.isdecimal():
        raise ConfigError(
            f"got DPS_LAUNCHER={launcher!r:.100}, wanted the number of a process, which dps launch sets; leave it out"
        )
    config.launcher = int(launcher)
    if "DPS_LAUNCHED" in os.environ and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.environ.get("DPS_LAUNCHER", str(os.getppid())) != str(os.getppid()):
            os._exit(1)  # the launcher had ended before this line


if __name__ == "__main__":
    code = main()
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    sys.exit(code)
