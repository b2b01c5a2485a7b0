"""Formats the failures of workers: one traceback, from the program's own code on, and a line for each other failure."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType

from dps.record import record

_OWN = os.path.dirname(os.path.abspath(__file__))


@record
class Failure:
    """Why a worker failed. `error`: class and message. `trace`: its traceback as text, or ""."""

    error: str
    trace: str = ""

    @property
    def line(self) -> str:
        """The error in one line."""
        return " ".join(self.error.split())

    @property
    def way(self) -> tuple[str, ...]:
        """A key that is equal for workers that failed in the same way, even if numbers in their messages differ."""
        places = tuple(line for line in self.trace.splitlines() if line.startswith("  File "))
        return (self.error.partition(":")[0], *places) if places else (self.error,)


def failure_of(error: BaseException) -> Failure:
    """The Failure of an exception. `sys.exit("why")` in a program gets no traceback, because its text is the reason."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SystemExit):
        return Failure(text)
    frames = _own_frames_left_out(error.__traceback__)
    if frames is None and not isinstance(error, SyntaxError):
        return Failure(text)
    return Failure(text, "".join(traceback.format_exception(type(error), error, frames)).rstrip())


def _own_frames_left_out(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without its first frames: those of dps's launcher and of the import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(("<frozen ", _OWN)):
        trace = trace.tb_next
    return trace


def told(failures: Mapping[int, Failure]) -> str:
    """The text of `wait` about failed workers, in the order in which they failed, because others may have failed as a
    consequence of the first."""
    (first, failure), *others = failures.items()
    text = f"worker:{first} failed: {failure.error}"
    if failure.trace:
        text += f"\n{failure.trace}"
    same = [task for task, other in others if other.way == failure.way]
    if same:
        text += f"\n{names(same)} failed the same way"
    return text + "".join(f"\nworker:{task} failed: {other.line}" for task, other in others if task not in same)


def names(tasks: Iterable[int]) -> str:
    """Workers by name: "worker:0, worker:1"."""
    return ", ".join(f"worker:{task}" for task in sorted(tasks))
