"""The roles that keys give to peers."""

from __future__ import annotations

ROLES = ("chief", "ps", "worker", "reader", "evaluator", "dataset", "operator")
"""Each has keys of its own. A reader only reads; an operator asks how a run does, and ends it."""
