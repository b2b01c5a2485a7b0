"""The runtime of a real process: ZeroMQ, the clock, threads and the disk."""

from __future__ import annotations

import atexit
import functools
import os
import random
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.garbage import gc as lent  # before `atexit.register` below: its own exit handler must run after ours

from dps.checkpoint.storage import LocalStorage, Storage
from dps.process import config
from dps.process.descriptors import check, opening
from dps.process.telemetry import log
from dps.transport.endpoint import Endpoint, ProcessLocation
from dps.transport.shared_memory import Bytes, SharedMemory, attach
from dps.transport.sockets.addresses import Binding
from dps.transport.sockets.dealer import SILENCE_S
from dps.transport.sockets.endpoint import ZmqEndpoint
from dps.transport.sockets.listener import Names
from dps.transport.tuning import ORDINARY, Tuning

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials, KeyFolder
    from dps.transport.keys.zap import Zap


SOCKETS = 16384
"""The most sockets of a process: three for each node that it connects to, for more than 5,000 nodes."""


class ThreadTask:
    """A daemon thread that runs one function with the context variables of its starter."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self._target = target
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except Exception:
            log.exception("task %s failed", self.name)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; True when it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


class ThreadCondition:
    """As `dps.transport.endpoint.Condition`, for threads. Signal handlers may call `notify`, too."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def notify(self) -> None:
        """As Condition.notify."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """As Condition.wait."""
        with self._changed:
            return self._changed.wait_for(ready, min(timeout_s, threading.TIMEOUT_MAX))


class RealRuntime:
    """The runtime of one real process. Made by `real_runtime()`; tests may make their own."""

    simulated = False
    threads = True

    def __init__(self, name: str | None = None, silence_s: float = SILENCE_S, tuning: Tuning = ORDINARY) -> None:
        self.name = name or f"pid {os.getpid()}"
        self.tuning = tuning
        self.silence_s = silence_s
        self.random = random.Random(os.urandom(32))
        self.storage: Storage = LocalStorage()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._names = Names()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._endpoints: list[ZmqEndpoint] = []
        self._zap: Zap | None = None

    @property
    def keeps_blocks(self) -> bool:
        """As Runtime.keeps_blocks."""
        return config.large_blocks_are_kept()

    @property
    def shares_log(self) -> bool:
        """As Runtime.shares_log: a launcher prints the lines of all tasks."""
        return config.launched.is_set()

    @functools.cached_property
    def place(self) -> ProcessLocation:
        """As Runtime.place."""
        host = os.uname().nodename
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot = file.read().strip()
        except OSError:  # not Linux
            boot = ""
        return ProcessLocation(host, boot or host, os.getpid(), config.launcher)

    def lives(self, pid: int) -> bool:
        """As Runtime.lives."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's process
            return True
        return True

    now = staticmethod(time.monotonic)

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        if seconds > 0:
            time.sleep(seconds)

    def condition(self) -> ThreadCondition:
        """As Runtime.condition."""
        return ThreadCondition()

    def check_descriptors(self, who: str, need: int) -> None:
        """As Runtime.check_descriptors."""
        check(who, need)

    def private_chief(self) -> tuple[str, str]:
        """As Runtime.private_chief. Raises ConfigError if no folder can be made."""
        from dps.transport.private_folders import private_chief

        return private_chief()

    def endpoint(self, bind: str | Binding | None = None, keys: Credentials | None = None) -> Endpoint:
        """A new endpoint; see `Runtime.endpoint`. Also raises ConfigError for a malformed address."""
        with self._lock:
            if self._context is None:
                self._context = zmq.Context(io_threads=1)
                self._context.set(zmq.MAX_SOCKETS, SOCKETS)
                atexit.register(self._at_exit)
            if keys is not None:
                self._check_keys(self._context, keys)
        with opening("a node's endpoint"):
            made = ZmqEndpoint(self._context, self._names, bind, self.silence_s, keys)
        with self._lock:
            self._endpoints = [other for other in self._endpoints if not other.closed] + [made]
        return made

    def _check_keys(self, context: zmq.Context[zmq.Socket[bytes]], keys: Credentials) -> None:
        """Have the keys of a folder checked wherever an endpoint of this process listens."""
        if self._zap is None:
            from dps.transport.keys.zap import Zap

            self._zap = Zap(context, self._keys_changed)
        self._zap.serve(keys)

    def _keys_changed(self, folder: KeyFolder) -> None:
        with self._lock:
            endpoints = list(self._endpoints)
        for endpoint in endpoints:
            endpoint.renew(folder)

    def share(self, nbytes: int) -> SharedMemory:
        """As Runtime.share: a sealed memfd."""
        return SharedMemory(nbytes)

    def attach(self, name: object) -> Bytes:
        """As Runtime.attach."""
        return attach(name)

    def secret(self) -> bytes:
        """As Runtime.secret."""
        return os.urandom(16)

    def spawn(self, name: str, target: Callable[[], None]) -> ThreadTask:
        """Run `target` in a daemon thread, with the caller's context variables; errors are logged."""
        return ThreadTask(name, target)

    def compute(self) -> float:
        """Does nothing: real computing takes real time."""
        return 0.0

    def charge_pass(self, work: str, nbytes: int, slots: int = 0) -> None:
        """As Runtime.charge_pass: real passes take real time."""

    def preempt(self) -> None:
        """Does nothing: the operating system does this."""

    def record(self, what: str, **detail: Any) -> None:
        """Does nothing: only the simulator keeps a trace."""

    def _at_exit(self) -> None:
        """Wait until the last messages of closed endpoints have left, at most for their linger time.

        With an endpoint still open this would wait for ever, and it may not be closed under the thread that uses it.
        In that case libzmq's threads run until the process ends, and the buffers that they read must not be freed:
        pyzmq would free them, and libzmq would then abort the process.
        """
        if self._context is None or os.getpid() != self._pid:
            return
        if all(made.closed for made in self._endpoints):
            self._context.term()
            return
        import ctypes

        atexit.unregister(lent._atexit)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(lent))


_lock = threading.Lock()
_runtimes: dict[int, RealRuntime] = {}


def real_runtime() -> RealRuntime:
    """The one real runtime of this process; a forked child gets its own."""
    pid = os.getpid()
    found = _runtimes.get(pid)
    if found is None:
        with _lock:
            found = _runtimes.setdefault(pid, RealRuntime())
    return found


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
