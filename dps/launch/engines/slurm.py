"""The engine for Slurm: one job with components for its roles, and a step with a host process on each node of each.

In an allocation (salloc, an sbatch file) its nodes are used; else one is asked for, and given back when the run is over
or its keeper has gone. A signal before the end of the job (`--signal`) is a notice that its nodes go.
"""

from __future__ import annotations

import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dps.cluster.resolvers.slurm import expand_hostlist, expand_tasks_per_node
from dps.errors import ConfigError, DpsError, TaskLost, Unavailable
from dps.launch.hosts.engine import HostsEngine, check_slots
from dps.launch.hosts.host import MODULE
from dps.launch.hosts.pipe import Pipe, run_command
from dps.launch.hosts.remote import HostSpec, RemoteHost
from dps.launch.supervision.engine import Engine, Line, Notice
from dps.launch.supervision.plan import Resources, RunPlan

TOOLS = ("salloc", "srun", "scontrol")
NOTICE = f"{int(signal.SIGWINCH)}@60"
"""The signal before the end of a job, and how many seconds before. All processes of a step get it, and tasks
ignore it. It is not SIGURG, by which their launcher tells them that the run has ended."""
READY = "dps has an allocation"
HOLD = (
    'exec 3<&0; (cat <&3; kill -TERM $$) >/dev/null 2>&1 & exec salloc --kill-command=KILL "$@" '
    f"sh -c \"env | grep ^SLURM_; echo '{READY}'; exec sleep 8640000\" </dev/null"
)
"""Asks for an allocation, prints its variables, and holds it until stdin ends: when the run is over, or the keeper has
gone, also while it is pending."""
LOOK_S = 3.0
"""How often Slurm is asked why an allocation is not there yet."""
NEVER = (
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "BadConstraints",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "JobHeldAdmin",
)
"""Reasons for which a job waits for ever."""
AWAY = re.compile("Unable to contact slurm controller|Munge|[Cc]onnection refused")
"""Matches the output of Slurm's commands when a daemon of Slurm does not run."""


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """The engine of a run with these settings."""
    return SlurmEngine(settings)


class SlurmEngine(HostsEngine):
    """Starts tasks on the nodes of a Slurm job."""

    where = "node"

    def __init__(self, settings: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self._environ = os.environ if environ is None else environ
        self._allocation: Allocation | None = None

    @property
    def _is_inside(self) -> bool:
        """Whether this process is in an allocation."""
        return "SLURM_JOB_ID" in self._environ

    def check(self, plan: RunPlan) -> None:
        """Raise ConfigError without Slurm, or if the allocation around this process is too small."""
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise ConfigError(f"--on slurm: this machine has no {missing[0]}; run dps where Slurm's commands are")
        if self._is_inside:
            check_slots(plan, [place.slots for place, _ in places(self._environ, ())], "the nodes of this allocation")

    def _connect_hosts(self, plan: RunPlan, notice: Notice) -> list[RemoteHost]:
        variables, roles = self._environ, list[tuple[str, ...]]()
        if not self._is_inside:
            wanted = components(plan)
            roles = [each for each, _, _ in wanted]
            self._allocation = Allocation(flags(wanted), self._line)
            variables = self._allocation.wait()
        hosts = []
        for place, group in places(variables, roles):
            hosts.append(host := RemoteHost(place, self._line, notice))
            words = step(variables["SLURM_JOB_ID"], place.name, group)
            host.connect(Pipe(words, host.take_report, partial(_broken, host)))
        return hosts

    def go_on(self) -> bool:
        """Whether another allocation can be asked for."""
        return not self._is_inside

    def close(self) -> None:
        """End all steps, and give the allocation back."""
        super().close()
        if self._allocation is not None:
            self._allocation.close()


def components(plan: RunPlan) -> list[tuple[tuple[str, ...], int, Resources]]:
    """The roles of each component of the job, how many tasks it has, and what each task gets.

    Slurm gives each component nodes of its own, so roles that want the same share one, and the chief, which has little
    work, is with the ps."""
    jobs = plan.jobs
    found: list[tuple[tuple[str, ...], int, Resources]]
    found = [(("chief", "ps"), 1 + jobs["ps"].count, jobs["ps"].resources)]
    for role in ("worker", "evaluator"):
        if role not in jobs:
            continue
        wanted, count = jobs[role].resources, jobs[role].count
        for i, (roles, before, other) in enumerate(found):
            if other == wanted:
                found[i] = (*roles, role), before + count, other
                break
        else:
            found.append(((role,), count, wanted))
    return found


def flags(wanted: Sequence[tuple[tuple[str, ...], int, Resources]]) -> list[str]:
    """The components as flags of salloc."""
    words: list[str] = []
    for _, count, resources in wanted:
        words += [":"] if words else []
        words += ["--job-name=dps", f"--signal={NOTICE}", f"--ntasks={count}", *_resources(resources)]
    return words


def _resources(wanted: Resources) -> list[str]:
    cpus = wanted.cpus or 1
    flags = [f"--cpus-per-task={cpus}"]
    if wanted.memory is not None:
        flags.append(f"--mem-per-cpu={math.ceil(wanted.memory / cpus / (1 << 20))}M")
    if wanted.gpus:
        flags.append(f"--gpus-per-task={wanted.gpus}")
    return flags


def places(variables: Mapping[str, str], roles: Sequence[tuple[str, ...]]) -> list[tuple[HostSpec, int | None]]:
    """The nodes of an allocation with their components (None: it has no components), from its variables.

    `roles`: the roles of each component; (): every node takes tasks of every role."""
    size = int(variables.get("SLURM_HET_SIZE", "0"))
    found = []
    for group in range(size) if size else (None,):
        end = "" if group is None else f"_HET_GROUP_{group}"
        nodes = expand_hostlist(variables.get(f"SLURM_JOB_NODELIST{end}") or variables[f"SLURM_NODELIST{end}"])
        counts = variables.get(f"SLURM_TASKS_PER_NODE{end}") or variables[f"SLURM_JOB_CPUS_PER_NODE{end}"]
        own = roles[group or 0] if roles else ()
        for node, slots in zip(nodes, expand_tasks_per_node(counts), strict=True):
            found.append((HostSpec(node, slots, own, address_of(node)), group))
    return found


def address_of(node: str) -> str:
    """The numeric address of a node, as Slurm knows it."""
    from dps.transport.sockets.addresses import resolve

    text = run_command(["scontrol", "--oneliner", "show", "node", node], f"the address of {node}")
    words = dict(word.partition("=")[::2] for word in text.split() if "=" in word)
    return resolve(words.get("NodeAddr", node))


def step(job: str, node: str, group: int | None) -> list[str]:
    """The command of a step with a host process on one node of one component, which is the connection to it."""
    component = [] if group is None else [f"--het-group={group}"]
    return [
        "srun", f"--jobid={job}", *component, f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap", "--quiet",
        "--unbuffered", "--job-name=dps", sys.executable, "-m", MODULE,
    ]  # fmt: skip


def _broken(host: RemoteHost, code: int, said: list[str]) -> None:
    """Tell a host why its step has ended."""
    last = said[-1] if said else f"exit code {code}"
    none = any("No module named" in text or "execve" in text for text in said)
    why = f"srun says: {last}" + (f"; {sys.executable} and dps are expected at the same path" if none else "")
    host.mark_lost(why, ConfigError if none else TaskLost)


class Allocation:
    """A job that holds nodes for a run."""

    def __init__(self, wanted: Sequence[str], line: Line) -> None:
        self._line, self._errors = line, list[str]()
        self._process = subprocess.Popen(
            ["sh", "-c", HOLD, "salloc", *wanted], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._error_reader = threading.Thread(target=self._read_errors, name="errors of salloc", daemon=True)
        self._error_reader.start()
        threading.Thread(target=self._read_output, name="dps holds a job", daemon=True).start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._said.put(text.rstrip("\n"))
        self._said.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            self._errors.append(text.strip().removeprefix("salloc: "))

    def wait(self) -> dict[str, str]:
        """The variables of the allocation, once it is there. Blocks as long as Slurm lets it wait; says so.

        Raises ConfigError if Slurm refuses it, and TaskLost if it was given back meanwhile."""
        found: dict[str, str] = {}
        told = ""
        while True:
            try:
                text = self._said.get(timeout=LOOK_S)
            except queue.Empty:
                told = self._tell_why(told)
                continue
            if text is None:
                raise self._refused_error()
            if text == READY:
                return found
            name, _, value = text.partition("=")
            found[name] = value

    def _tell_why(self, told: str) -> str:
        """Say why the job waits, if that is not what was told last; returns it. ConfigError if it waits for ever."""
        pending = next((words[-1] for text in self._errors if (words := text.split())[:1] == ["Pending"]), "")
        if not pending:
            return told
        why = sorted(
            set(run_command(["squeue", "-h", "-j", pending, "-o", "%r"], f"why job {pending} waits").split()) - {"None"}
        )
        if never := [reason for reason in why if reason in NEVER]:
            raise ConfigError(f"Slurm gives no job: {never[0]}; wanted less than the partition allows (sinfo shows it)")
        text = f"waits for job {pending} of Slurm ({', '.join(why)}); Ctrl-C and dps kill give up"
        if why and text != told:
            self._line("dps", text)
        return text if why else told

    def _refused_error(self) -> DpsError:
        self._process.wait()
        self._error_reader.join(1.0)
        errors = [text.removeprefix("error: ") for text in self._errors if text.startswith("error: ")]
        if any(AWAY.search(text) for text in errors):
            return Unavailable(f"Slurm cannot be reached: {errors[-1]}; try: sinfo")
        if errors:
            return ConfigError(f"Slurm gives no job: {errors[-1]}")
        said = self._errors[-1] if self._errors else "salloc says nothing"
        return TaskLost(f"the job was given back before it began: {said}")

    def close(self) -> None:
        """Give it back. Blocks until Slurm has been told."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
