"""What a session asks of the run: checked, and in the form that the chief compares."""

from __future__ import annotations

import os
from typing import Any

from dps.errors import ConfigError
from dps.update import Update, parse, to_wire


def run_settings(
    update: Update | str | None,
    durability: str,
    checkpoint_dir: str | os.PathLike[str] | None,
    check_finite: bool | None,
    keep: int,
) -> dict[str, Any]:
    """The settings for the chief; `check_finite` None: of a reader, which has no say in it. Raises ConfigError."""
    if durability in ("standby", "log"):
        raise ConfigError(f"durability {durability!r} is not there yet; wanted 'none'")
    if durability != "none":
        raise ConfigError(f"durability: got {durability!r}, wanted 'none'")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigError(f"keep_checkpoints: got {keep!r}, wanted a whole number from 1")
    settings: dict[str, Any] = {}
    if update is not None:
        settings["update"] = to_wire(parse(update) if isinstance(update, str) else update)
    if checkpoint_dir:
        if not isinstance(checkpoint_dir, str | os.PathLike):
            raise ConfigError(f"checkpoint_dir: got {checkpoint_dir!r}, wanted a path")
        settings["checkpoint_dir"] = os.fspath(checkpoint_dir)
    if check_finite is not None:
        settings |= {"check_finite": bool(check_finite), "keep": keep}
    return settings


def check_timeout(timeout: object) -> None:
    """ConfigError for what is no number of seconds above 0."""
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__") or not float(timeout) > 0:
        raise ConfigError(f"timeout: got {timeout!r}, wanted seconds above 0, or dps.FOREVER")
