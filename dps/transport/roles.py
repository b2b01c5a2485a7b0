"""The roles of keys, and which of them may send a message: `class Pull(Message, kind=10, roles=SESSIONS)`."""

from __future__ import annotations

ROLES = ("chief", "ps", "worker", "reader", "evaluator", "dataset", "operator")
"""Each has keys of its own. A reader only reads; an operator asks how a run does, and ends it."""

Roles = frozenset[str]

CHIEF_ONLY: Roles = frozenset({"chief"})
PS_ONLY: Roles = frozenset({"ps"})
WORKERS: Roles = frozenset({"worker"})
"""Those who change values."""
SESSIONS: Roles = frozenset({"worker", "reader", "evaluator"})
"""Those who read values."""
TASKS: Roles = frozenset({"chief", "ps", "worker", "evaluator", "dataset"})
"""Those who run a program of the user's, or serve it: they share queues and datasets."""
NODES: Roles = TASKS | {"reader"}
"""Those who listen, and so report to the chief."""
OPERATOR_ONLY: Roles = frozenset({"operator"})
ENDS: Roles = frozenset({"ps", "worker", "operator"})
"""Those who report that a task has ended."""
ALL: Roles = frozenset(ROLES)
TOKEN = "token"
"""What the key in a join token counts as. It enrols another key, and does nothing else."""
TOKENS: Roles = frozenset({TOKEN})
ANSWER: Roles = frozenset()
"""A message that only answers another one."""
