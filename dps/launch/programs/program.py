"""Runs a user's program as a task of this process, and turns its end into an exit code."""

from __future__ import annotations

import _thread
import contextlib
import os
import re
import signal
import sys

from dps.errors import ConfigError, DpsError
from dps.launch.supervision.outcome import OVER
from dps.process import endings
from dps.process.flags import said


def run_program(program: str, arguments: list[str], verbose: bool) -> int:
    """Run a user's program as this task. Errors of the program show their traceback and give exit code 1."""
    sys.argv = [program, *arguments]
    try:
        with endings.program():
            _execute_program(program)
        return 0
    except DpsError as error:
        if verbose:
            sys.excepthook(*sys.exc_info())
        print(f"dps: {said(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return exit_code(error)
    except Exception as error:
        print_error(error)
        return 1


def _execute_program(program: str) -> None:
    import runpy

    if _split_program(program)[1]:
        from dps.process.functions import load

        load(program)()
    elif program.endswith(".py") or os.path.exists(program):
        _check_file(program, program)
        if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
            raise ConfigError(f"--program {program}: a folder without __main__.py; wanted FILE or package.module")
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path.insert(0, os.getcwd())
        check_module(program)
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def check_program(program: str) -> None:
    """Raise ConfigError for a program that is not there, or a file without its function. Runs nothing of it."""
    target, function = _split_program(program)
    if target.endswith(".py") or os.path.exists(target):
        _check_file(program, target)
        if function:
            _check_function(program, target, function)
        return
    sys.path.insert(0, os.getcwd())
    try:
        check_module(target)
    finally:
        sys.path.pop(0)


def _split_program(program: str) -> tuple[str, str]:
    """The file or module of a program, and the name of its function; "" if it names none."""
    target, _, function = program.rpartition(":")
    return (target, function) if target and function.isidentifier() else (program, "")


def _check_file(program: str, path: str) -> None:
    """Raise ConfigError if the program's file is missing."""
    if not os.path.exists(path):
        raise ConfigError(f"--program {program}: no such file; wanted FILE or package.module")


def _check_function(program: str, path: str, function: str) -> None:
    """Raise ConfigError if the file cannot have the function: it does not contain its name, nor imports all names of a
    module."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if "import *" not in text and not re.search(rf"\b{re.escape(function)}\b", text):
        raise ConfigError(f"--program {program}: {path} has no function {function!r}; wanted FILE:function")


def check_module(name: str) -> None:
    """Raise ConfigError for a missing module. Missing imports of that module are not checked."""
    import importlib.util

    try:
        found = importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None)
        if missing is not None and not name.startswith(f"{missing}."):
            raise
        found = False
    if not found:
        raise ConfigError(f"--program {name}: no such file or module; wanted FILE, package.module, or either:function")


def print_error(error: Exception) -> None:
    """Print a program's traceback, from the program's own frames on."""
    import traceback

    from dps.process.functions import without_own_frames

    trace = without_own_frames(error.__traceback__)
    if trace is None and not isinstance(error, SyntaxError):
        trace = error.__traceback__
    traceback.print_exception(type(error), error, trace)


def exit_code(error: SystemExit) -> int:
    """The exit code of `sys.exit(...)`, as Python defines it."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def handle_run_end() -> None:
    """Handle the launcher's signal from now on. Only on the main thread."""
    signal.signal(OVER, lambda number, frame: _start_ending())


def _start_ending() -> None:
    """Called by a signal handler, between any two lines of the program: the thread takes the locks, this does not."""
    _thread.start_new_thread(_end_tasks, ())


def _end_tasks() -> None:
    """End the parts of this process in the launcher's run. One that has not begun yet hears it the next time."""
    served_task = sys.modules.get("dps.task.served_task")
    with contextlib.suppress(RuntimeError):  # another thread has added a task meanwhile
        for task in list(served_task.serving) if served_task is not None else ():
            if task.target == os.environ.get("DPS_CHIEF"):
                task.run_ended()
