"""`dps launch`: makes runs from a program, an experiment file or an earlier run, and keeps them."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps.cluster.identity import MOST_TASKS
from dps.errors import ConfigError, DpsError
from dps.launch.engines import LOCAL, default, make_engine
from dps.launch.hosts.machine import this_machine
from dps.launch.runs import folder, keeper, keeping, request
from dps.launch.runs.view import read_run
from dps.launch.supervision.output import BufferedOutput, Output
from dps.launch.supervision.plan import DATASET, SERVING, Job, RunPlan, small_plan
from dps.process import descriptors, own_files
from dps.process.config import allowed_cpus, parse_threads
from dps.process.flags import drop_output
from dps.process.record import record
from dps.transport.clock import wall

FILES = (".yaml", ".yml", ".json")
"""Endings of experiment files."""
IN_THE_FILE = ("ps", "workers", "update", "restarts", "threads", "device", "evaluator", "serve", "dataset", "datasets")
"""Flags for what an experiment file says itself."""
OF_A_FILE = ("set", "metric")


@record
class RunRequest:
    """A run to be made. `plan`: its plan, for its id; `asked`: what people see of it later."""

    plan: Callable[[str], RunPlan]
    asked: dict[str, Any]


def launch(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Start what the arguments of `dps launch` say, and keep it to its end; returns the exit code. `env`: where tasks
    listen. Blocks, except with --detach for the time that the first run needs to begin."""
    if args.metric:
        from dps.launch.runs.results import parse_metric

        parse_metric(args.metric)
    parallel = 1
    if args.resume:
        wanted = [wanted_resumed(args)]
    elif args.program is None and not args.serve:
        raise ConfigError("no program was given; wanted dps launch PROGRAM, dps launch FILE.yaml, or --resume ID")
    elif args.program is not None and args.program.endswith(FILES):
        wanted, parallel = wanted_of_file(args, env)
    else:
        wanted = [wanted_of_flags(args, env)]
    for each in wanted:
        plan, where = each.plan("0"), each.asked["where"]
        descriptors.check("each task of this run", descriptors.needed_to_launch(plan.ps, plan.workers))
        engine = make_engine(where)
        engine.check(plan)
        if plan.pin:
            if engine.elsewhere:
                raise ConfigError(f"got --pin and --on {where['on']}; tasks are pinned on this machine only")
            allowed_cpus()
    if text := own_files.warning(folder.root(), "the runs in it are for this account alone"):
        print(f"dps: {text}", file=sys.stderr)
    paths = [begin_run(each, not args.json) for each in wanted]
    if args.detach:
        return run_in_background(paths, parallel)
    show = None if args.json else BufferedOutput(os.path.basename(paths[0]))
    code = keeping.keep_runs(paths, parallel, show)
    end_output(paths[0], show)
    if len(paths) > 1 or args.json:
        from dps.launch.runs.results import report

        report(paths, args.metric, args.json)
    return code


def end_output(path: str, show: BufferedOutput | None) -> None:
    """Drop lines that could not be written, as on a full disk: a run that is over has its own exit code. Says so,
    unless their reader has gone."""
    error = drop_output(sys.stdout) or (None if show is None else show.trouble)
    if error is not None and not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError):
            print(
                f"dps: the output: {error.strerror}; dps logs {os.path.basename(path)} may have more", file=sys.stderr
            )


def begin_run(wanted: RunRequest, say: bool = False) -> str:
    """Make a run; returns its folder. `say`: print first where it will write."""
    path = folder.create(folder.root())
    try:
        plan = keeper.plan_with_output(path, wanted.plan(os.path.basename(path)))
        output = plan.env["OUTPUT_DIR"]
        if say:
            beyond = "" if output.startswith(os.path.join(path, "")) else f" and {output} (OUTPUT_DIR)"
            Output().print_line("dps", f"run {os.path.basename(path)} writes to {path}{beyond}")
        keeper.prepare_run(path, plan, wanted.asked)
    except DpsError:
        shutil.rmtree(path)
        raise
    except OSError as error:
        shutil.rmtree(path)
        raise ConfigError(
            f"the run cannot be made in {path}: {error.strerror or error}; make room there, or set DPS_RUNS to another "
            "folder"
        ) from None
    return path


def run_in_background(paths: Sequence[str], parallel: int) -> int:
    """Keep runs in the background, and say how they are reached. Returns the first one's exit code if it is over."""
    view = keeping.detach_runs(paths, parallel)
    ids = " ".join(os.path.basename(path) for path in paths)
    if view.is_over and view.values["exit_code"]:
        print(f"dps: run {view.id}: {view.values['reason']}", file=sys.stderr)
        return int(view.values["exit_code"])
    print(
        f"run {ids}: {view.state}; look at it with: dps status {view.id}, dps logs {view.id} --follow, dps kill {ids}"
    )
    return 0


def wanted_of_file(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[list[RunRequest], int]:
    """The runs of an experiment file, and how many of them run at one time."""
    from dps.launch.experiment.experiment import load

    if given := [name for name in IN_THE_FILE if getattr(args, name) not in (None, "", [])]:
        raise ConfigError(f"got --{given[0]} with an experiment file, which says that itself; change {args.program}")
    if args.arguments:
        raise ConfigError(f"got arguments after --; those of an experiment are in its file, {args.program}, under run")
    experiment = load(args.program, args.set)
    on = args.on or default(experiment.elsewhere)
    where = {"on": on, **experiment.elsewhere}
    if not make_engine(where).elsewhere:
        experiment.check(this_machine(os.environ))
    command = shlex.join(["dps", "launch", *(["--on", on] if on != LOCAL else []), os.path.abspath(args.program)])

    def wanted(values: dict[str, str]) -> RunRequest:
        def plan(run: str) -> RunPlan:
            made = experiment.make_plan(values, run)
            return RunPlan(made.jobs, made.update, {**env, **made.env}, made.owned, args.pin, made.folder)

        return RunRequest(plan, {"name": experiment.name, "command": command, "values": values, "where": where})

    return [wanted(values) for values in experiment.points()], experiment.parallel


def wanted_of_flags(args: argparse.Namespace, env: Mapping[str, str]) -> RunRequest:
    """The run of a program."""
    if given := [name for name in OF_A_FILE if getattr(args, name)]:
        raise ConfigError(f"--{given[0]} is for experiment files; got the program {args.program}")
    ps, workers = (1 if count is None else count for count in (args.ps, args.workers))
    check_flags(args, ps, workers)
    restarts = 1 if args.restarts is None else args.restarts
    program = (args.program, *args.arguments) if args.program is not None else ()
    plan = small_plan(ps, workers, program, restarts, update=args.update or "", env=env, pin=args.pin)
    flags = [f"--{name}={value}" for name in ("threads", "device") if (value := getattr(args, name))]
    jobs = {**plan.jobs, "ps": Job(ps, flags=tuple(flags), restarts=restarts)}
    if args.evaluator is not None:
        jobs["evaluator"] = Job(run=tuple(shlex.split(args.evaluator)))
    if args.dataset is not None:
        count = 1 if args.datasets is None else args.datasets
        jobs[DATASET] = Job(count, tuple(shlex.split(args.dataset)), restarts=restarts)
    if args.serve:
        jobs["worker"] = Job(workers, (f"{SERVING}:main", *args.serve), restarts=restarts)
        if program:  # it is outside of the training cluster, as an evaluator is
            jobs["evaluator"] = Job(run=(f"{SERVING}:schedule", *program))
    plan = RunPlan(jobs, plan.update, plan.env, pin=plan.pin, folder=os.getcwd())
    name = os.path.splitext(os.path.basename(args.program or args.serve[0]))[0]
    serves = [word for module in args.serve for word in ("--serve", module)]
    own = [args.program] if args.program is not None else []
    command = shlex.join(["dps", "launch", *serves, *own, *(["--", *args.arguments] if args.arguments else [])])
    asked = {"name": name, "command": command, "values": {}, "where": {"on": args.on or LOCAL}}
    return RunRequest(lambda run: plan, asked)


def check_flags(args: argparse.Namespace, ps: int, workers: int) -> None:
    """Raise ConfigError for flags that a run cannot be started with."""
    if ps < 0 or workers < 1:
        raise ConfigError(f"got --ps {ps} --workers {workers}; wanted --workers from 1 and --ps from 0")
    if (most := max(ps, workers, args.datasets or 0)) > MOST_TASKS:
        raise ConfigError(f"got {most} tasks of a job; wanted at most {MOST_TASKS}")
    if args.restarts is not None and args.restarts < 0:
        raise ConfigError(f"got --restarts {args.restarts}; wanted a whole number from 0")
    if args.serve:
        check_serves(args)
    check_datasets(args)
    beside = [word for text in (args.evaluator, args.dataset) for word in shlex.split(text or "")[:1]]
    for program in (args.program or "", *beside):
        file = program.rpartition(":")[0] or program
        if file.endswith(".py") and not os.path.exists(file):
            raise ConfigError(f"{file}: no such file; wanted a program, FILE or package.module")
    if args.evaluator is not None and not args.evaluator.strip():
        raise ConfigError("got an empty --evaluator; wanted FILE, or 'FILE ARGUMENTS'")
    if args.update:
        from dps.training.update_modes import parse_flag

        parse_flag(args.update)
    if args.threads:
        parse_threads(args.threads)


def check_datasets(args: argparse.Namespace) -> None:
    """Raise ConfigError for dataset tasks that cannot be started."""
    if args.dataset is None and args.datasets is not None:
        raise ConfigError(f"got --datasets {args.datasets} and nothing to serve; wanted --dataset FILE:NAME, too")
    if args.dataset is not None and ":" not in args.dataset:
        raise ConfigError(f"got --dataset {args.dataset}, wanted FILE:NAME, a dataset or a function that makes one")
    if args.datasets is not None and args.datasets < 1:
        raise ConfigError(f"got --datasets {args.datasets}; wanted at least one")


def check_serves(args: argparse.Namespace) -> None:
    """Raise ConfigError for what does not go together with workers that serve."""
    if args.evaluator is not None:
        raise ConfigError("got --serve and --evaluator; start the evaluator by itself, with its --chief")
    if args.trusted_network:
        raise ConfigError("got --serve on a trusted network: without keys, workers serve on their own machine only")


def wanted_resumed(args: argparse.Namespace) -> RunRequest:
    """The run that goes on from the checkpoint of an earlier one: the same plan and the same OUTPUT_DIR."""
    if args.program is not None or args.arguments:
        raise ConfigError("got --resume and a program; a run goes on with its own program")
    view = read_run(folder.find(args.resume), wall())
    if not view.is_over:
        raise ConfigError(f"run {view.id} goes on: it is {view.state}; dps kill {view.id} ends it")
    plan = request.read_plan(view.path)
    told = {name: view.asked[name] for name in ("name", "command", "values")}
    told["where"] = view.asked.get("where") or {"on": LOCAL}
    return RunRequest(lambda run: plan, told | {"resumes": view.id})
