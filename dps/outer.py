"""Local mode: the plan of a run as its ps apply it, with the outer optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dps.record import replace
from dps.variables.columns import PerObject
from dps.variables.plan import Plan


def as_applied(plan: Plan, update: Mapping[str, Any]) -> Plan:
    """The plan with the optimizers that the ps apply. In local mode that is the outer one for all trained variables,
    which has the workers' own noted beside it. `update`: the wire form of the mode."""
    if update["mode"] != "local":
        return plan

    def outer(own: dict[str, Any] | None) -> dict[str, Any] | None:
        if own is None:
            return None
        averaged = {key: own[key] for key in ("moving_average",) if key in own}
        return {**update["outer"], **averaged, "inner": own}

    applied = PerObject(outer)
    return replace(
        plan, variables=tuple(spec._replace(optimizer=applied.of(spec.optimizer)) for spec in plan.variables)
    )
