"""What a program left open is closed when the program ends: well, or with the error that ended it.

An adapter whose users write no `close()` registers a function by `at_end`. Whoever runs a program in this process says
where it begins and ends (`program`), and so knows the exception that ended it. A script that nobody runs ends with the
interpreter. How it ended is then seen from outside: CPython tells no exit function of it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from dps.process.telemetry import log

Ending = Callable[[BaseException | None], None]
"""Closes something; it is given the error that has ended the program, None for a good end. May block, and raise."""


class Program:
    """A program that runs in this process, and what is to be closed when it ends."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []

    def close(self, error: BaseException | None) -> None:
        """Call all endings, the latest first, each once. An ending that raises makes a good end a bad one: the others
        get its error, which is raised at the end. Beside an earlier error it is logged."""
        first: BaseException | None = None
        while self.endings:
            try:
                self.endings.pop()(error or first)
            except Exception as failed:
                if error or first:
                    log.warning("could not close what the program left open: %s: %s", type(failed).__name__, failed)
                else:
                    first = failed
        if first is not None:
            raise first


_program: ContextVar[Program | None] = ContextVar("program", default=None)


def at_end(ending: Ending) -> Callable[[], None]:
    """Have a function called once, when the program that calls this ends. Returns a function that cancels it."""
    endings = (_program.get() or _script()).endings
    endings.append(ending)

    def cancel() -> None:
        if ending in endings:
            endings.remove(ending)

    return cancel


@contextmanager
def program() -> Iterator[None]:
    """The scope of a program that this process runs. Its end closes what the program left open, on the same thread."""
    running = Program()
    token = _program.set(running)
    try:
        yield
    except BaseException as error:
        running.close(None if is_good(error) else error)
        raise
    else:
        running.close(None)
    finally:
        _program.reset(token)


def is_good(error: BaseException) -> bool:
    """Whether it is the `SystemExit` of a good end: `sys.exit()` or `sys.exit(0)`."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


# -- a script that nobody runs ----------------------------------------------------------------------------------


class Script(Program):
    """The interpreter's own program: it ends with the process."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self._frame = _outermost()
        self._exit: SystemExit | None = None
        self._raised_before: object = None
        """`sys.last_value` at the last `sys.exit`."""
        self._sys_exit = sys.exit
        sys.exit = self._note_exit  # type: ignore[assignment]
        atexit.register(self._ended)  # after non-daemon threads, which may train, and before dps stops its tasks

    def _note_exit(self, code: object = None, /) -> None:
        self._exit, self._raised_before = SystemExit(code), getattr(sys, "last_value", None)
        self._sys_exit(code)  # type: ignore[arg-type]

    def _error(self) -> BaseException | None:
        """The error that ended the script. None for a good end, and for a `SystemExit` that `sys.exit` did not raise,
        of which nobody is told."""
        if self._frame is None or _has_returned(self._frame):
            return None
        raised: BaseException | None = getattr(sys, "last_value", None)
        if raised is not None and (self._exit is None or raised is not self._raised_before):
            return raised
        return None if self._exit is None or is_good(self._exit) else self._exit

    def _ended(self) -> None:
        if os.getpid() != self._process:  # a copy of the process that a fork made holds the same sockets
            return
        error = self._error()
        try:
            self.close(error)
        except Exception as failed:
            if error is None:
                _leave(failed)
            raise


_of_process: list[Script] = []
_making = threading.Lock()  # two threads that come first must not register two endings


def _script() -> Program:
    with _making:
        if not _of_process or _of_process[0]._process != os.getpid():
            _of_process[:] = [Script()]
        return _of_process[0]


def _outermost() -> FrameType | None:
    """The frame in which the main thread began: that of the script, or of what runs it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    """Whether a frame that has ended returned: its last instruction is a return, and not one that raised."""
    import dis  # here: `import dps` stays quick

    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _leave(failed: Exception) -> None:
    """End a process whose program ended well, but could not be closed, with the exit code of that error."""
    from dps.errors import DpsError
    from dps.process.flags import said

    told = said(failed) if isinstance(failed, DpsError) else f"{type(failed).__name__}: {failed}"
    print(f"dps: {told}", file=sys.stderr)
    atexit._run_exitfuncs()  # those that are left: dps's own stop its tasks
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(failed.exit_code if isinstance(failed, DpsError) else 1)
