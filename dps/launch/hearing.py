"""How a program's task hears from its launcher that the run has ended, if it stood still when the chief said so."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys

from dps.launch.outcome import OVER


def hear_of_the_end() -> None:
    """Handle the launcher's signal from now on. Only on the main thread."""
    signal.signal(OVER, lambda number, frame: _heard())


def _heard() -> None:
    """Called by a signal handler, between any two lines of the program: the thread takes the locks, this does not."""
    _thread.start_new_thread(_end_tasks, ())


def _end_tasks() -> None:
    """End the parts of this process in the launcher's run. One that has not begun yet hears it the next time."""
    served_task = sys.modules.get("dps.served_task")
    with contextlib.suppress(RuntimeError):  # another thread has added a task meanwhile
        for task in list(served_task.serving) if served_task is not None else ():
            if task.target == os.environ.get("DPS_CHIEF"):
                task.run_ended()
