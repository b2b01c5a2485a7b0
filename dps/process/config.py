"""Settings of this process, set once by its entry point."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dps.errors import ConfigError

stop_requested = threading.Event()
"""Set by the first Ctrl-C (or SIGTERM): training loops stop, because `session.should_stop()` is true."""

launched = threading.Event()
"""Set in a task that a launcher started. It starts all tasks, so only the chief reports missing tasks."""

session_opened = threading.Event()
"""Set when this process has joined a run, to train or to read."""

trains = threading.Event()
"""Set when this process has joined a run to train as its task. The session then tells the chief of the task's end."""

serves = threading.Event()
"""Set when this process runs functions for others."""

launcher = 0
"""The process that restarts this one when it dies; 0 for none."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables for the threads of numeric libraries; the launcher sets unset ones to 1."""

MALLOC = {
    "MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2_000_000_000, "MALLOC_TOP_PAD_": 64 << 20, "MALLOC_ARENA_MAX": 1,
}  # fmt: skip
"""These make glibc keep large blocks for the next message. By default it returns each to the kernel, and every message
then causes page faults. (A high MALLOC_MMAP_THRESHOLD_ would do, too, but older versions limit it to 32 MB.) There is
one arena, because the arena of another thread, such as libzmq's, cannot keep blocks of more than 64 MB."""
_MALLOPT = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_ARENA_MAX": -8}
"""The same for mallopt(3): its parameters in malloc.h."""


def state_folder(environ: Mapping[str, str] | None = None) -> str:
    """Where dps keeps what is this user's: runs and own keys. It need not be there yet."""
    env = os.environ if environ is None else environ
    state = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(os.path.abspath(state), "dps")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a launched task: one thread for each numeric library, and a malloc that keeps large blocks.
    Variables that are set already are not changed."""
    threads = {name: "1" for name in THREADS if name not in os.environ}
    malloc = {} if malloc_is_chosen() else {name: str(value) for name, value in MALLOC.items()}
    own = {"DPS_LAUNCHED": "1", "DPS_LAUNCHER": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DPS_") and k != "TF_CONFIG"}
    return {**inherited, **threads, **malloc, **own, **(extra or {})}


def malloc_is_chosen() -> bool:
    """Whether the environment configures glibc's malloc differently from `environment`; then dps changes nothing."""
    own = {name: str(value) for name, value in MALLOC.items()}
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") and own.get(name) != value for name, value in os.environ.items()
    )


def keep_large_blocks() -> bool:
    """Make this process's malloc keep large blocks, unless the environment configures malloc. Returns whether it did
    so; False also if the C library is not glibc. Call it before threads are started."""
    if malloc_is_chosen():
        return False
    import ctypes

    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # other libraries have a mallopt that does nothing
        done = all(library.mallopt(_MALLOPT[name], value) == 1 for name, value in MALLOC.items())
    except (OSError, AttributeError, TypeError):
        return False
    if done:
        _blocks_kept.set()
    return done


def trim_memory() -> bool:
    """Return all free memory to the system now, even if malloc keeps large blocks. Returns whether it did so; False if
    the C library is not glibc. Takes some 20 ms per GB."""
    if not is_glibc():
        return False
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)
    return True


_blocks_kept = threading.Event()


def large_blocks_are_kept() -> bool:
    """Whether this process's malloc keeps large blocks: `keep_large_blocks` was called, or `environment` made it."""
    if _blocks_kept.is_set():
        return True
    return blocks_kept_by_environment() and is_glibc()


def blocks_kept_by_environment() -> bool:
    """Whether the environment tells glibc to keep large blocks."""
    return all(os.environ.get(name) == str(value) for name, value in MALLOC.items())


def is_glibc() -> bool:
    """Whether this process's malloc is glibc's."""
    return "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A scope for importing modules, in which the garbage collector is off. Objects that exist at its end are frozen:
    later collections skip them.

    numpy is imported first, from few frames. CPython keeps frames in blocks of 16 KB and maps and unmaps one for each
    call across the end of a block: deep imports of numpy did that 1,800 times, a tenth of a worker's start.
    """
    gc.disable()
    try:
        import numpy  # noqa: F401

        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def building() -> Iterator[None]:
    """A scope for making very many objects, in which the garbage collector is off."""
    walks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if walks:
            gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A scope for importing modules in a user's program: their objects, which live as long as the process, go to the
    collector's oldest generation without being walked once more, which takes a tenth of the time of the import."""
    with building():
        yield
        if not gc.get_freeze_count():  # else the program has frozen objects, and `unfreeze` would free them
            gc.freeze()
            gc.unfreeze()


# -- processors ---------------------------------------------------------------------------------------------------


MOST_CPUS = 1 << 20
"""More processors than any machine has."""


def parse_cpus(text: str) -> tuple[int, ...]:
    """Numbers of processors from "0,2-3", in rising order. Raises ConfigError for a malformed list."""
    cpus: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        numbers = first, last or first
        if not all(map(str.isdecimal, numbers)) or (dash and not last) or not int(first) <= int(numbers[1]) < MOST_CPUS:
            raise ConfigError(f"got --cpus {text!r}; wanted numbers of processors, as 0,2-3")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list that `parse_cpus` reads: "0,2-3"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


AUTO = 0
"""Stands for the threads of a ps: its own, and more for a long pass while processors are idle."""


def parse_threads(given: int | str) -> int:
    """How many threads a ps may use, from a whole number or "auto" (AUTO). Raises ConfigError for anything else."""
    text = str(given).strip().lower()
    if text == "auto":
        return AUTO
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ConfigError(f"got {given!r} threads for a ps; wanted a whole number from 1, or auto")
    return int(text)


def cores() -> int:
    """How many processors this process may run on."""
    with contextlib.suppress(ConfigError):
        return len(allowed_cpus())
    return os.cpu_count() or 1


def allowed_cpus() -> tuple[int, ...]:
    """The processors that this process may run on. Raises ConfigError if the system cannot tell."""
    with contextlib.suppress(AttributeError, OSError):
        return tuple(sorted(os.sched_getaffinity(0)))
    raise ConfigError("this system cannot pin a process to processors; leave --cpus, --pin and pin=True out")


def pin(cpus: Sequence[int]) -> None:
    """Keep this process, and the threads that it makes from now on, on these processors. Raises ConfigError with the
    names of processors that it may not use."""
    allowed = allowed_cpus()
    if missing := sorted(set(cpus) - set(allowed)):
        raise ConfigError(
            f"got --cpus {format_cpus(cpus)}; this process may use {format_cpus(allowed)}, not {format_cpus(missing)}"
        )
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ConfigError(f"--cpus {format_cpus(cpus)} was refused: {error.strerror}; leave it out") from None


def deal_cpus(tasks: Sequence[str], cpus: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Processors for each task: neighbouring ones in equal shares, with the remainder for the first tasks. If there are
    fewer processors than tasks, tasks share them in turn."""
    if len(cpus) < len(tasks):
        return {task: (cpus[i % len(cpus)],) for i, task in enumerate(tasks)}
    share, more = divmod(len(cpus), len(tasks))
    starts = [i * share + min(i, more) for i in range(len(tasks) + 1)]
    return {task: tuple(cpus[starts[i] : starts[i + 1]]) for i, task in enumerate(tasks)}
