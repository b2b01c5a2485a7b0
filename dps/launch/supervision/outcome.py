"""Turns the exit codes of a launched run's tasks into one exit code, and a line that gives the reason."""

from __future__ import annotations

import signal
from collections.abc import Mapping

LOST = 3
FAILED = 1
WRONG = 2
KNOWN = (0, FAILED, WRONG, LOST, 4, 5, 130)
"""The exit codes of dps. A program that ends with another one has failed."""
LEFT = 143
"""The exit code of a ps that SIGTERM ended while the run went on."""
TEARDOWN = signal.SIGUSR1
"""The signal by which a launcher ends chief and ps at once. SIGTERM ends them in order, whoever sends it."""
OVER = signal.SIGURG
"""The signal by which a launcher tells a program's task that the run has ended well. Nothing happens in a process that
does not handle it, as one that has just started."""
TOLD = (0, -signal.SIGTERM, -TEARDOWN)
"""Exit codes of tasks that the launcher ended."""
NAMED = 3
"""The most tasks that are named if several ended in the same way."""


def outcome(
    codes: Mapping[str, int], crashed: dict[str, int], reason: str = "", errors: Mapping[str, str] | None = None,
    refused: Mapping[str, str] | None = None,
) -> tuple[int, str]:  # fmt: skip
    """The run's exit code, and the last line to print, "" if the run went well.

    `codes`: the exit codes of the tasks; a negative one is the signal that ended the task. `crashed`: exit codes of ps
    and chief that died while the run went on, the latest last; some may have been restarted. `reason`: why the
    chief ended the run, in its own words. `errors`: the last error that tasks have printed. The code is 3 if a ps or
    the chief is gone for good. Otherwise workers that failed by themselves count before a chief that ended because of
    them.
    """
    bad = {name: code for name, code in codes.items() if code not in TOLD}
    workers = {name: code for name, code in bad.items() if name.startswith(("worker:", "evaluator:"))}
    servers = {name: code for name, code in bad.items() if name not in workers}
    died = {name: code for name, code in servers.items() if code < 0 or code == LEFT}
    failed = any(code != LOST for code in workers.values())
    if died or (LOST in servers.values() and not failed):
        return LOST, f"the run is over: {_loss_text(crashed, died, reason)}"
    ended = workers or servers
    if not ended:
        return 0, ""
    if codes.get("chief") == 0 and set(ended.values()) == {LOST}:  # it stood still, or could not reach the others
        return LOST, f"the run has ended without {_names(list(ended))}, exit code {LOST}"
    worst = max(code if code in KNOWN else FAILED for code in ended.values())
    ways: dict[str, list[str]] = {}
    for name, code in ended.items():
        ways.setdefault(_end_text(code), []).append(name)
    ends = (
        f"{_names(names)} {way}{_error_text(names, ended[names[0]], errors or {}, refused or {})}"
        for way, names in ways.items()
    )
    return worst, f"the run failed: {'; '.join(ends)}"


def _loss_text(crashed: dict[str, int], died: dict[str, int], reason: str) -> str:
    """A text for a lost task: how the process died that the chief names, else the chief's own reason."""
    named = reason.partition(" ")[0]
    if named in crashed:
        return f"{named} was lost ({describe(crashed[named])})"
    if reason and not died:
        return reason
    name, code = next(reversed(crashed.items()), next(iter(died.items()), ("chief", LOST)))
    return f"{name} {_end_text(code) if code == LOST else f'was lost ({describe(code)})'}"


def _names(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _error_text(names: list[str], code: int, errors: Mapping[str, str], refused: Mapping[str, str]) -> str:
    """The error of the first of these tasks that has printed one, as text that follows how they ended."""
    told = {**errors, **refused} if code == WRONG else errors
    own = " of the program itself" if code == WRONG and names[0].startswith(("worker:", "evaluator:")) else ""
    return next((f": {told[name]}" for name in names if name in told), own)


def _end_text(code: int) -> str:
    """How a task ended, as text that follows its name."""
    return f"ended with {describe(code)}" if code >= 0 else f"was killed ({describe(code)}), exit code {128 - code}"


def describe(code: int) -> str:
    """An exit code for people."""
    if code == LEFT:
        return "SIGTERM"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
