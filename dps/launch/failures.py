"""Formats the failures of workers: one traceback, from the program's own code on, and a line for each other failure."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType

from dps.errors import ConfigError
from dps.record import record

_OWN = os.path.dirname(os.path.abspath(__file__))
_DPS = os.path.dirname(_OWN)


@record
class Failure:
    """Why a worker failed. `error`: class and message. `trace`: its traceback as text, or "". `place`: the line of the
    program that failed, where the message says enough; or ""."""

    error: str
    trace: str = ""
    place: str = ""

    @property
    def line(self) -> str:
        """The error in one line."""
        return " ".join(self.error.split()) + (f" ({self.place})" if self.place else "")

    @property
    def way(self) -> tuple[str, ...]:
        """A key that is equal for workers that failed in the same way, even if numbers in their messages differ."""
        places = tuple(line for line in self.trace.splitlines() if line.startswith("  File "))
        places = (self.place,) if self.place else places
        return (self.error.partition(":")[0], *places) if places else (self.error,)


def failure_of(error: BaseException) -> Failure:
    """The Failure of an exception. `sys.exit("why")` in a program gets no traceback, because its text is the reason."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SystemExit):
        return Failure(text)
    frames = _own_frames_left_out(error.__traceback__)
    if isinstance(error, ConfigError) and (place := _place(frames)):
        return Failure(text, place=place)
    if frames is None and not isinstance(error, SyntaxError):
        return Failure(text)
    return Failure(text, "".join(traceback.format_exception(type(error), error, frames)).rstrip())


def _own_frames_left_out(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without its first frames: those of dps's launcher and of the import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(("<frozen ", _OWN)):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType | None) -> str:
    """The last line of a traceback that is not dps's, if dps raised the error; else ""."""
    found, ours = "", False
    while trace is not None:
        code = trace.tb_frame.f_code
        ours = code.co_filename.startswith(_DPS)
        if not ours:
            found = f"{os.path.basename(code.co_filename)}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return found if ours else ""


def told(failures: Mapping[int, Failure]) -> str:
    """The text of `wait` about failed workers, in the order in which they failed, because others may have failed as a
    consequence of the first."""
    (first, failure), *others = failures.items()
    text = f"worker:{first} failed: {failure.line if failure.place else failure.error}"
    if failure.trace:
        text += f"\n{failure.trace}"
    same = [task for task, other in others if other.way == failure.way]
    if same:
        text += f"{'; ' if failure.place else chr(10)}{names(same)} failed the same way"
    return text + "".join(f"\nworker:{task} failed: {other.line}" for task, other in others if task not in same)


def names(tasks: Iterable[int]) -> str:
    """Workers by name: "worker:0, worker:1"."""
    return ", ".join(f"worker:{task}" for task in sorted(tasks))
