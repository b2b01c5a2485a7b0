"""Checks that all tasks and sessions of a run agree on update mode, layout and settings. Errors name both sides."""

from __future__ import annotations

from typing import Any

from dps import update
from dps.errors import ConfigError
from dps.variables.plan import Plan


class Agreement:
    """The update mode, set by the first task that gives one: a flag of a ps or the chief, or the first session."""

    def __init__(self, mode: dict[str, Any] | None) -> None:
        self._mode, self._said_by = mode, "the chief"

    def mode(self, name: str, wanted: dict[str, Any] | None) -> dict[str, Any]:
        """The run's update mode, after the task `name` has given `wanted`; async if no task gives one.

        Raises ConfigError if another mode was given before.
        """
        if wanted and self._mode and wanted != self._mode:
            raise ConfigError(
                f"{name} wants {update.describe(wanted)}, {self._said_by} has {update.describe(self._mode)}; "
                "leave one of them out or give both the same"
            )
        if wanted and not self._mode:
            self._mode, self._said_by = wanted, name
        return self._mode or update.to_wire(update.Async())


def check_fits(name: str, plan: dict[str, Any], settings: dict[str, Any], run_plan: Plan, run: dict[str, Any]) -> None:
    """Raise ConfigError if a later session's layout or settings differ from those of the run; {} fits any run."""
    if plan and (difference := Plan.from_wire(plan).differs(run_plan)):
        raise ConfigError(f"{name} does not fit the run: {difference}; give all workers the same model and optimizer")
    for key in ("update", "durability", "checkpoint_dir"):
        wanted, has = settings.get(key), run.get(key)
        if wanted and wanted != has:
            texts = [update.describe(v) if key == "update" and v else repr(v) for v in (wanted, has)]
            raise ConfigError(f"{name} wants {key} {texts[0]}; the run has {texts[1]}: give the same, or leave it out")
