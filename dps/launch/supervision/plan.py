"""The plan of a launched run: how many tasks each role has, their program, environment, resources and restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dps.cluster.address import at_port, split
from dps.process.record import made, record

STDIN = "-"
"""Stands for the chief's address if it comes on stdin."""
EVALUATOR = "evaluator:0"
"""Also the program that drives workers that serve: it is outside of the training cluster, too."""
SERVING = "dps.launch.programs.serving"
"""Has the programs of a run whose workers serve."""
DATASET = "dataset"
"""The role of tasks that read for all workers."""
LOOPBACK = "127.0.0.1:0"


@record
class Resources:
    """The resources of each task of a role. None: no wish, and nothing is changed. `memory` in bytes."""

    cpus: int | None = None
    memory: int | None = None
    gpus: int | None = None


@record
class Job:
    """The tasks of one role. `run`: a program and its arguments; `flags`: more flags of `python -m dps.role`."""

    count: int = 1
    run: tuple[str, ...] = ()
    env: Mapping[str, str] = made(default_factory=dict)
    flags: tuple[str, ...] = ()
    restarts: int = 0
    resources: Resources = Resources()


@record
class RunPlan:
    """All that is needed to start a run. `jobs`: by role; "chief", "ps" and "worker" are always there.

    `env`: variables for all tasks; DPS_BIND is where the chief listens, and the other tasks listen on the same host.
    `owned`: the run does not end when its workers have left. `folder`: where programs run; "": here."""

    jobs: Mapping[str, Job]
    update: str = ""
    env: Mapping[str, str] = made(default_factory=dict)
    owned: bool = False
    pin: bool = False
    folder: str = ""

    @property
    def ps(self) -> int:
        return self.jobs["ps"].count

    @property
    def workers(self) -> int:
        return self.jobs["worker"].count

    @property
    def bind(self) -> str:
        """Where the chief listens, if the run uses a network."""
        return self.env.get("DPS_BIND", LOOPBACK)

    @property
    def serves(self) -> bool:
        """Whether the workers serve, and do what the program of `EVALUATOR` schedules if there is one."""
        return self.jobs["worker"].run[:1] == (f"{SERVING}:main",)

    def tasks(self) -> list[str]:
        """The names of all tasks, such as "worker:0", in the order in which they start."""
        return [
            "chief",
            *(f"{job}:{i}" for job, each in self.jobs.items() if job != "chief" for i in range(each.count)),
        ]

    def job(self, name: str) -> Job:
        """The role of a task."""
        return self.jobs[name.partition(":")[0]]

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a task that its plan sets."""
        made = {**self.env, **self.job(name).env}
        if name != "chief":
            hosts = {"DPS_BIND": at_port(self.bind, 0), "DPS_ADVERTISE": split(made.get("DPS_ADVERTISE", ""))[0]}
            made |= {variable: value for variable, value in hosts.items() if variable in made}
        return made

    def chief_flags(self, bind: str) -> list[str]:
        """The flags of the chief's role."""
        flags = ["--job", "chief", "--bind", bind, "--ps", str(self.ps), "--workers", str(self.workers)]
        flags += ["--update", self.update] if self.update else []
        if advertise := self.env.get("DPS_ADVERTISE"):
            flags += ["--advertise", advertise]
        return flags + (["--owned"] if self.owned else [])

    def flags(self, name: str, chief: str, run: Sequence[str] = ()) -> list[str]:
        """The flags of another task's role. `run`: its program and arguments, instead of the plan's."""
        role, _, task = name.partition(":")
        flags = ["--job", role, "--task", task, "--chief", chief, *self.job(name).flags]
        if role == "ps":
            return flags
        program, *arguments = run or self.job(name).run
        if role == DATASET:
            flags += ["--datasets", str(self.job(name).count)]
        else:
            flags += ["--ps", str(self.ps), "--workers", str(self.workers)]  # for the program's TF_CONFIG
        return [*flags, "--program", program, "--", *arguments]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a file; `plan_from` reads them."""
        own = {name: getattr(self, name) for name in ("update", "owned", "pin", "folder")}
        return {**own, "env": dict(self.env), "jobs": {name: _job_as_dict(job) for name, job in self.jobs.items()}}


def _job_as_dict(job: Job) -> dict[str, Any]:
    kept = job.resources
    return {
        "count": job.count, "run": list(job.run), "env": dict(job.env), "flags": list(job.flags),
        "restarts": job.restarts, "resources": {"cpus": kept.cpus, "memory": kept.memory, "gpus": kept.gpus},
    }  # fmt: skip


def plan_from(values: Mapping[str, Any]) -> RunPlan:
    """The plan that `RunPlan.as_dict` has written."""
    jobs = {
        name: Job(
            job["count"], tuple(job["run"]), job["env"], tuple(job["flags"]), job["restarts"],
            Resources(**job["resources"]),
        )
        for name, job in values["jobs"].items()
    }  # fmt: skip
    return RunPlan(jobs, values["update"], values["env"], values["owned"], values["pin"], values["folder"])


def small_plan(ps: int = 1, workers: int = 1, run: Sequence[str] = (), restarts: int = 1, **settings: Any) -> RunPlan:
    """A plan with a chief, this many ps and workers, and nothing of its own for any role."""
    jobs = {"chief": Job(restarts=restarts), "ps": Job(ps, restarts=restarts), "worker": Job(workers, tuple(run))}
    return RunPlan(jobs, **settings)


def has_program(role: str) -> bool:
    """Whether the tasks of a role are given a program."""
    return role == DATASET or runs_program(f"{role}:")


def runs_program(name: str) -> bool:
    """Whether a task runs a user's program, as workers and evaluators do."""
    return name.startswith(("worker:", "evaluator:"))
