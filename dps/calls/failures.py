"""How the failure of a function is told elsewhere: its error and its traceback as text."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from dps.errors import ConfigError, told, travelling
from dps.process.functions import DPS, without_own_frames
from dps.process.record import record


@record
class Failure:
    """Why a function failed on a worker. `error`: class and message. `trace`: its traceback as text, or "". `place`:
    the line of the program that failed, where the message says enough; or ""."""

    error: str
    trace: str = ""
    place: str = ""

    @property
    def line(self) -> str:
        """The error in one line."""
        return " ".join(self.error.split()) + (f" ({self.place})" if self.place else "")

    @property
    def cause(self) -> tuple[str, ...]:
        """A key that is equal for workers that failed in the same way, even if numbers in their messages differ."""
        places = tuple(line for line in self.trace.splitlines() if line.startswith("  File "))
        places = (self.place,) if self.place else places
        return (self.error.partition(":")[0], *places) if places else (self.error,)


def failure_of(error: BaseException) -> Failure:
    """The Failure of an exception. `sys.exit("why")` in a program gets no traceback, because its text is the reason."""
    text = told(error)
    if isinstance(error, SystemExit):
        return Failure(text)
    frames = without_own_frames(error.__traceback__)
    if isinstance(error, ConfigError) and (place := _place(frames)):
        return Failure(text, place=place)
    if frames is None and not isinstance(error, SyntaxError):
        return Failure(text)
    return Failure(text, traceback_of(error))


def _place(trace: TracebackType | None) -> str:
    """The last line of a traceback that is not dps's, if dps raised the error; else ""."""
    found, ours = "", False
    while trace is not None:
        code = trace.tb_frame.f_code
        ours = code.co_filename.startswith(DPS)
        if not ours:
            found = f"{os.path.basename(code.co_filename)}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return found if ours else ""


def traceback_of(error: BaseException) -> str:
    """The traceback of an error as text, from the program's own frames on."""
    frames = without_own_frames(error.__traceback__)
    return travelling("".join(traceback.format_exception(type(error), error, frames)).rstrip())
