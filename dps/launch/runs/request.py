"""What a run was asked for: its plan in run.json, and apart from it, in env.json, the values of the plan's variables.

The values may be secrets, such as tokens, and run.json is what people show to others. They are kept, because a keeper
in the background and `dps launch --resume` need them (docs/decisions/0062).
"""

from __future__ import annotations

import os
from typing import Any

from dps.errors import ConfigError
from dps.launch.runs import folder
from dps.launch.supervision.plan import RunPlan, plan_from

RUN, ENV = "run.json", "env.json"
ALL = ""
"""Stands for all tasks, where variables are listed by role."""


def write_request(path: str, plan: RunPlan, told: dict[str, Any]) -> None:
    """Write what the run in a folder was asked for. `told`: what people see of it besides the plan."""
    values = plan.as_dict()
    env = {ALL: values["env"], **{role: job["env"] for role, job in values["jobs"].items()}}
    jobs = {role: job | {"env": sorted(job["env"])} for role, job in values["jobs"].items()}
    folder.write(os.path.join(path, ENV), env)
    plain = values | {"env": sorted(values["env"]), "jobs": jobs}
    folder.write(os.path.join(path, RUN), {**told, "format": folder.FORMAT, "plan": plain})


def read_plan(path: str) -> RunPlan:
    """The plan of a run. ConfigError if it has none, or the values of its variables are gone."""
    run, asked = os.path.basename(path), folder.read(os.path.join(path, RUN))
    if "plan" not in asked:
        raise ConfigError(f"run {run} has no plan: it was never begun")
    plan, env = asked["plan"], _env(path, asked)
    if ALL not in env:
        raise ConfigError(
            f"run {run} cannot go on: {os.path.join(path, ENV)}, with the values of its variables, is gone; "
            f"begin a new run: {asked['command']}"
        )
    jobs = {role: job | {"env": env[role]} for role, job in plan["jobs"].items()}
    return plan_from(plan | {"env": env[ALL], "jobs": jobs})


def read_variables(path: str) -> dict[str, str]:
    """The variables of all tasks of a run; {} if there are none (yet)."""
    return _env(path, folder.read(os.path.join(path, RUN))).get(ALL, {})


def _env(path: str, asked: dict[str, Any]) -> dict[str, dict[str, str]]:
    if asked.get("format", 1) >= 2:
        return folder.read(os.path.join(path, ENV))
    plan = asked.get("plan", {"env": {}, "jobs": {}})
    return {ALL: plan["env"], **{role: job["env"] for role, job in plan["jobs"].items()}}
