"""The chief's lock on the run's checkpoint_dir: taken before any write there, released at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node
from dps.checkpoint.lock import BEAT_S, Owner, RunLock, Taken, moment
from dps.errors import CheckpointError
from dps.telemetry import log
from dps.transport.endpoint import Task

LOOK_S = 1.0
"""How often a chief that waits for a lock checks it again."""
RELEASE_S = 1.0
"""How long the end of a run waits for a heartbeat that is being written. A longer one releases the lock at its end."""


class Locking:
    """Holds the lock of one run at a time. `RunLock` has the policy."""

    def __init__(self, node: Node, again: Callable[[], None], lost: Callable[[str], None]) -> None:
        """`again` is called when `take` should be tried again. `lost` gets the reason when another run has taken the
        lock of a run that is going on."""
        self._node, self._again, self._lost = node, again, lost
        self._lock: RunLock | None = None
        self._dir = ""
        self._looking = False
        self._failing = False
        self._task: Task | None = None
        """The task of the last heartbeat."""

    @property
    def waits_for(self) -> str:
        """The possible holder of the lock that `take` waits for; "" while it waits for none."""
        return self._lock.text if self._lock is not None and self._looking else ""

    def take(self, checkpoint_dir: str, restarted: bool, goes_on: bool) -> bool:
        """Take the lock; returns whether the run may use the folder now. If False, `again` is called soon.

        `restarted`: another chief led the run before, and may have left its lock. `goes_on`: that run trains meanwhile,
        also if the disk is full, and the lock is taken as soon as possible. Raises Taken if another run has the lock,
        and CheckpointError if the file system refuses.
        """
        if self._lock is None or self._dir != checkpoint_dir or (goes_on and self._looking):
            self.release()
            self._lock, self._dir = self._made(checkpoint_dir, restarted), checkpoint_dir
            self._node.after(BEAT_S, lambda lock=self._lock: self._beat(lock))  # type: ignore[misc]
        try:
            held = self._lock.take(self._node.runtime.now())
        except Taken:
            self.release()
            raise
        except CheckpointError as error:
            if not goes_on:
                self.release()
                raise CheckpointError(f"the run cannot begin: {error}") from error
            self._note(str(error))
            held = True
        if held or goes_on:
            self._looking = False
            return True
        if not self._looking:
            self._looking = True
            log.warning("%s: %s", self._node.name, self._lock.text)
            self._node.after(LOOK_S, lambda lock=self._lock: self._look(lock))  # type: ignore[misc]
        return False

    def _made(self, checkpoint_dir: str, restarted: bool) -> RunLock:
        runtime, process = self._node.runtime, f"{self._node.incarnation:x}"
        host, boot, pid, keeper = runtime.place
        owner = Owner(process, process, host, boot, pid, keeper, self._node.address, moment(runtime.wall()))
        return RunLock(runtime.storage, checkpoint_dir, owner, restarted, runtime.lives)

    def release(self) -> None:
        """Release the lock, because the run is over or another chief has it."""
        lock, self._lock = self._lock, None
        self._looking = self._failing = False
        if lock is not None:
            if self._task is not None:
                self._task.join(RELEASE_S)
            lock.release()

    def _look(self, lock: RunLock) -> None:
        if lock is self._lock and self._looking:
            self._again()
            if self._looking:
                self._node.after(LOOK_S, lambda: self._look(lock))

    # -- while the run goes on ----------------------------------------------------------------------------------

    def _beat(self, lock: RunLock) -> None:
        """Write a heartbeat, on a separate task, so that a network file system that hangs does not block the chief."""
        if lock is not self._lock:
            return
        if self._looking:
            self._node.after(BEAT_S, lambda: self._beat(lock))
            return
        runtime = self._node.runtime

        def work() -> None:
            reason = problem = ""
            try:
                reason = lock.beat(runtime.now())
            except CheckpointError as error:
                problem = str(error)
            self._node.post(lambda: self._beaten(lock, reason, problem))

        self._task = runtime.spawn("lock", work)

    def _beaten(self, lock: RunLock, reason: str, problem: str) -> None:
        if lock is not self._lock:
            return
        if reason:
            self._lock = None
            self._lost(reason)
            return
        self._note(problem)
        self._node.after(BEAT_S, lambda: self._beat(lock))

    def _note(self, problem: str) -> None:
        """Log one line when heartbeats begin to fail, and no more, because the disk may be full for long."""
        if problem and not self._failing:
            text = "the lock of the checkpoint_dir could not be refreshed, training goes on; it is tried again every"
            log.error("%s: %s %.0f s: %s", self._node.name, text, BEAT_S, problem)
        self._failing = bool(problem)
