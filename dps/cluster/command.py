"""The command that starts a task, for messages that say who is missing."""

from __future__ import annotations


def start_command(job: str, task: int | None, where: str) -> str:
    """`task` None: any task. `where`: the flags for the cluster, "--chief HOST:PORT" or "--cluster CLUSTER"."""
    index = "" if task is None or job == "chief" else f" --task {task}"
    program = " --program PROGRAM" if job == "worker" else ""
    return f"python -m dps.role --job {job}{index} {where}{program}"
