"""The chief's lock on the run's checkpoint_dir: taken before any write there, released at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Callable

from dps.actors.node import Node
from dps.checkpoint.lock import BEAT_S, LockTaken, Owner, RunLock, moment
from dps.chief.members import RunMembers
from dps.chief.run import write_journal
from dps.errors import CheckpointError
from dps.process.telemetry import log
from dps.transport.endpoint import TaskHandle

LOOK_S = 1.0
"""How often a chief that waits for a lock checks it again."""
RELEASE_S = 1.0
"""How long the end of a run waits for a heartbeat that is being written. A longer one releases the lock at its end."""


class Locking:
    """Holds the lock of one run at a time. `RunLock` has the policy."""

    def __init__(self, node: Node, retry: Callable[[], None], lost: Callable[[str], None]) -> None:
        """`retry` is called when `take_lock` should be tried again. `lost` gets the reason when another run has taken
        the lock of a run that is going on."""
        self._node, self._retry, self._lost = node, retry, lost
        self._lock: RunLock | None = None
        self._dir = ""
        self._is_waiting = False
        self._failing = False
        self._task: TaskHandle | None = None
        """The task of the last heartbeat."""

    @property
    def waits_for(self) -> str:
        """The possible holder of the lock that `take_lock` waits for; "" while it waits for none."""
        return self._lock.text if self._lock is not None and self._is_waiting else ""

    def take_lock(self, checkpoint_dir: str, restarted: bool, goes_on: bool) -> bool:
        """Take the lock; returns whether the run may use the folder now. If False, `retry` is called soon.

        `restarted`: another chief led the run before, and may have left its lock. `goes_on`: that run trains meanwhile,
        also if the disk is full, and the lock is taken as soon as possible. Raises Taken if another run has the lock,
        and CheckpointError if the file system refuses.
        """
        if self._lock is None or self._dir != checkpoint_dir or (goes_on and self._is_waiting):
            self.release_lock()
            self._lock, self._dir = self._made(checkpoint_dir, restarted), checkpoint_dir
            self._node.after(BEAT_S, lambda lock=self._lock: self._write_heartbeat(lock))  # type: ignore[misc]
        try:
            held = self._lock.acquire(self._node.runtime.now())
        except LockTaken:
            self.release_lock()
            raise
        except CheckpointError as error:
            if not goes_on:
                self.release_lock()
                raise CheckpointError(f"the run cannot begin: {error}") from error
            self._log_problem(str(error))
            held = True
        if held or goes_on:
            self._is_waiting = False
            return True
        if not self._is_waiting:
            self._is_waiting = True
            log.warning("%s: %s", self._node.name, self._lock.text)
            self._node.after(LOOK_S, lambda lock=self._lock: self._retry_lock(lock))  # type: ignore[misc]
        return False

    def _made(self, checkpoint_dir: str, restarted: bool) -> RunLock:
        runtime, process = self._node.runtime, f"{self._node.incarnation:x}"
        host, boot, pid, keeper = runtime.place
        owner = Owner(process, process, host, boot, pid, keeper, self._node.address, moment(runtime.wall()))
        return RunLock(runtime.storage, checkpoint_dir, owner, restarted, runtime.lives)

    def release_lock(self) -> None:
        """Release the lock, because the run is over or another chief has it."""
        lock, self._lock = self._lock, None
        self._is_waiting = self._failing = False
        if lock is not None:
            if self._task is not None:
                self._task.join(RELEASE_S)
            lock.release()

    def _retry_lock(self, lock: RunLock) -> None:
        if lock is self._lock and self._is_waiting:
            self._retry()
            if self._is_waiting:
                self._node.after(LOOK_S, lambda: self._retry_lock(lock))

    # -- while the run goes on ----------------------------------------------------------------------------------

    def _write_heartbeat(self, lock: RunLock) -> None:
        """Write a heartbeat, on a separate task, so that a network file system that hangs does not block the chief."""
        if lock is not self._lock:
            return
        if self._is_waiting:
            self._node.after(BEAT_S, lambda: self._write_heartbeat(lock))
            return
        runtime = self._node.runtime

        def work() -> None:
            reason = problem = ""
            try:
                reason = lock.write_heartbeat(runtime.now())
            except CheckpointError as error:
                problem = str(error)
            self._node.post(lambda: self._handle_heartbeat(lock, reason, problem))

        self._task = runtime.spawn("lock", work)

    def _handle_heartbeat(self, lock: RunLock, reason: str, problem: str) -> None:
        if lock is not self._lock:
            return
        if reason:
            self._lock = None
            self._lost(reason)
            return
        self._log_problem(problem)
        self._node.after(BEAT_S, lambda: self._write_heartbeat(lock))

    def _log_problem(self, problem: str) -> None:
        """Log one line when heartbeats begin to fail, and no more, because the disk may be full for long."""
        if problem and not self._failing:
            text = "the lock of the checkpoint_dir could not be refreshed, training goes on; it is tried again every"
            log.error("%s: %s %.0f s: %s", self._node.name, text, BEAT_S, problem)
        self._failing = bool(problem)


AGAIN_S = 2.0
"""Seconds until a failed write of the journal is tried again."""


class Journaling:
    """Writes the journal of one chief. A run epoch begins only once its number is written, so no chief reuses it."""

    def __init__(self, node: Node, members: RunMembers, written: Callable[[], None]) -> None:
        """`written` is called when a write succeeds after a failed one."""
        self._node, self._members, self._written = node, members, written
        self.problem = ""
        """Why the last write failed; "" if it succeeded."""
        self._wanted: tuple[str, int] | None = None
        """Folder and run epoch of the next attempt."""

    def write(self, checkpoint_dir: str, epoch: int, ended: bool = False) -> bool:
        """Write the current members and the highest run epoch; returns whether it succeeded. Blocks on the storage."""
        try:
            write_journal(self._node.runtime.storage, checkpoint_dir, epoch, self._members, ended)
        except CheckpointError as error:
            self._failed(error, ended)
            self._wanted = None if ended else (checkpoint_dir, epoch)
            return False
        if self.problem:
            log.warning("%s: the journal can be written again", self._node.name)
        self.problem, self._wanted = "", None
        return True

    def drop_write(self) -> None:
        """Drop a failed write, because its run will not begin."""
        self.problem, self._wanted = "", None

    def _failed(self, error: CheckpointError, ended: bool) -> None:
        if not self.problem:
            more = (
                "" if ended else f"; training goes on, but no new run epoch begins; it is tried every {AGAIN_S:.0f} s"
            )
            log.error("%s: the journal cannot be written: %s%s", self._node.name, error, more)
        self.problem = str(error)
        if self._wanted is None and not ended:
            self._node.after(AGAIN_S, self._retry_write)

    def _retry_write(self) -> None:
        """Write the current state, unless a later write has succeeded meanwhile."""
        if self._wanted is None:
            return
        wanted, self._wanted = self._wanted, None
        if self.write(*wanted):
            self._written()


class CheckpointRoot:
    """The folder below which sessions name their checkpoint_dir."""

    def __init__(self, root: str | None = None, host: str = "") -> None:
        """`root`: the folder; "": others may join this run, and none was given; None: nobody else may join. `host`: the
        worker in whose process the chief is; "": it has one of its own."""
        self._root, self._host = root, host
        self._named = ""
        """What a session in the chief's process has named: it could write there without the chief."""

    def waiting_text(self, name: str, wanted: str, own: bool, joined: bool) -> str:
        """What a session has to wait for before it may name this folder; "" if it may. `own`: it is in the chief's
        process. `joined`: its key has joined the run by a token. Raises CheckpointError if it may not."""
        if own:
            self._named = wanted
        root = "" if joined and self._root is None else self._root
        if not wanted or root is None or self._is_allowed(wanted, root):
            return ""
        asks = f"{name} asks for checkpoints in {wanted}"
        if root:
            raise CheckpointError(
                f"{asks}, which is not below {root}, the folder for checkpoints of this run; name a checkpoint_dir "
                "below that (under dps launch it is OUTPUT_DIR), or start the run with another --checkpoint-root FOLDER"
            )
        if self._host and not self._named:
            return (
                f"{asks}; the chief allows that once {self._host}, which hosts it, has opened a session with the same"
            )
        raise CheckpointError(
            f"{asks}, but others may join this run and the chief was given no folder for checkpoints; start it with "
            "--checkpoint-root FOLDER (DPS_CHECKPOINT_ROOT, checkpoint_root=) and name a checkpoint_dir below that"
        )

    def check_file(self, name: str, path: str, joined: bool) -> None:
        """Raise CheckpointError unless a session outside of the chief's process may have ps read this file for first
        values: one below the folder of the run's checkpoints, where that is limited."""
        root, limited = self._root or self._named, self._root is not None or joined
        if not limited or (root and is_below(path, root)):
            return
        raise CheckpointError(
            f"{name} asks for first values from {path}, but others may join this run and the file is not below "
            f"{root or 'a folder that the chief was given'}; move it there, or start the chief with another "
            "--checkpoint-root FOLDER (DPS_CHECKPOINT_ROOT, checkpoint_root=)"
        )

    def is_allowed(self, wanted: str) -> bool:
        """Whether a session may name this folder without waiting."""
        return self._root is None or self._is_allowed(wanted, self._root)

    def _is_allowed(self, wanted: str, root: str) -> bool:
        return is_below(wanted, root) if root else wanted == self._named


def is_below(path: str, root: str) -> bool:
    """Whether a path is a folder or lies below it, with all links followed."""
    top, found = os.path.realpath(root), os.path.realpath(path)
    return found == top or found.startswith(os.path.join(top, ""))
