"""The roles of keys, and which of them may send a message: `class Pull(Message, kind=10, roles=SESSIONS)`."""

from __future__ import annotations

ROLES = ("chief", "ps", "worker", "reader", "evaluator", "dataset", "operator")
"""Each has keys of its own. A reader only reads; an operator asks how a run does, and ends it."""

Roles = frozenset[str]

CHIEF_ONLY: Roles = frozenset({"chief"})
PS_ONLY: Roles = frozenset({"ps"})
WORKERS: Roles = frozenset({"worker"})
"""Roles that change values."""
SESSIONS: Roles = frozenset({"worker", "reader", "evaluator"})
"""Roles that read values."""
TASKS: Roles = frozenset({"chief", "ps", "worker", "evaluator", "dataset"})
"""Roles that run a program of the user, or serve one: they share queues and datasets."""
NODES: Roles = TASKS | {"reader"}
"""Roles that listen, and so report to the chief."""
OPERATOR_ONLY: Roles = frozenset({"operator"})
VISITORS: Roles = SESSIONS | OPERATOR_ONLY
"""Roles that look for the tasks of a run from outside of it, and ask how it does."""
ENDS: Roles = frozenset({"ps", "worker", "operator"})
"""Roles that report the end of a task."""
ALL: Roles = frozenset(ROLES)
ANY_TASK = "any task"
"""Stands for the role of a listener that may be any task of a run but its chief."""
TOKEN = "token"
"""The role of the key in a join token. It enrols another key, and does nothing else."""
TOKENS: Roles = frozenset({TOKEN})
ANSWER: Roles = frozenset()
"""A message that only answers another one."""


def roles_of(job: str) -> tuple[str, ...]:
    """The roles whose key a task of a job may have, the preferred one first. A client, or a job that dps has no role
    for, has that of a worker or of a reader."""
    return (job,) if job in ROLES else ("worker", "reader")
