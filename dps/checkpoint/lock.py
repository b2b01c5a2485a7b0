"""The lock file of a checkpoint_dir. It names the chief that holds it, so that only one run at a time writes there.

Two things show that a lock is in use. The operating system locks the file for its holder, and unlocks it when that
process ends in any way. On one machine, and on network file systems with locks, this decides at once. Elsewhere the
holder's `beat` decides: it changes the file every few seconds, and a chief that wants the lock watches the file for a
change, on its own clock. Clocks of two machines are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from dps.checkpoint.files import LOCK_FILE, join
from dps.checkpoint.storage import Claim, Storage
from dps.errors import CheckpointError
from dps.process.record import as_dict, fields_of, record

BEAT_S = 3.0
"""How often a holder must call `beat`."""
SILENT_S = 15.0
"""A lock that the operating system does not hold is broken if it did not change for so long."""
NBYTES = 512
"""The file's usual size. It is overwritten in place, which needs no room on a full disk."""

FREE, WATCHING, HELD, LOST = "free", "watching", "held", "lost"


class LockTaken(CheckpointError):
    """Another run has the lock."""


@record
class Owner:
    """The holder of a lock: a chief's process. `process`, `boot` and `keeper` tell processes and machines apart."""

    run: str
    """The run's id; a restarted chief keeps it."""
    process: str
    """A number that no other process has."""
    host: str
    boot: str
    """Identifies one start of one machine: the same for all processes that one operating system runs."""
    pid: int
    keeper: int
    """The process that restarts the chief when it dies; 0 for none."""
    chief: str
    """The chief's address."""
    since: str
    """The holder's time when the run took the lock, as text for people."""

    def __str__(self) -> str:
        return f"another run, whose chief is {self.chief} (process {self.pid} on {self.host}), since {self.since}"


def moment(wall_s: float) -> str:
    """Seconds since 1970 as text for people, in UTC."""
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


class RunLock:
    """One chief's view of the lock on one checkpoint_dir. `now` is always the chief's own monotonic clock.

    Call `acquire` until the lock is held, then `write_heartbeat` every `BEAT_S`, and finally `release`. All calls block
    on the storage and come from one thread at a time, except that `release` may come while `write_heartbeat` runs: then
    `write_heartbeat` releases the lock when it ends.
    """

    def __init__(
        self,
        storage: Storage,
        checkpoint_dir: str,
        owner: Owner,
        restarted: bool = False,
        lives: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        """`restarted`: the owner replaces a chief that died at the same address. `lives(pid)` tells whether a process
        with that number exists on the owner's machine."""
        self.path = join(checkpoint_dir, LOCK_FILE)
        self.state = FREE
        self._storage, self._dir, self._owner = storage, checkpoint_dir, owner
        self._restarted, self._lives = restarted, lives
        self._claim: Claim | None = None
        self._beats = 0
        self._seen: tuple[bytes, float] | None = None
        """The content of another run's lock, and since when it is the same."""
        self._busy = self._released = False

    @property
    def text(self) -> str:
        """The possible holder, while the state is WATCHING."""
        whose = self._named(self._seen[0] if self._seen else b"")
        return (
            f"{self.path} is the lock of {whose}; it is broken if that run does not write to it within {SILENT_S:.0f} s"
        )

    def acquire(self, now: float) -> bool:
        """Take the lock; returns whether it is held now. If False, it may be in use elsewhere; try again every second.

        Raises Taken if another run has it, and CheckpointError if the file system refuses. Changes nothing in the
        checkpoint_dir unless the lock is held.
        """
        if self.state == HELD:
            return True
        claim = self._storage.claim(self.path)
        if claim is None:
            raise self._taken(self._content())
        try:
            if not self._may_take(claim, now):
                claim.drop()
                return False
            self._write(claim)
        except Exception:
            claim.release() if claim.made else claim.drop()
            raise
        self._claim, self.state = claim, HELD
        return True

    def write_heartbeat(self, now: float) -> str:
        """Write a heartbeat and check the lock; returns why the lock was lost, or "" if it is still held.

        A run that continued without the lock, because a disk was full, takes it here. Raises CheckpointError if the
        file system refuses; the lock then does not change.
        """
        self._busy = True
        try:
            return self._check_and_write(now)
        finally:
            self._busy = False
            if self._released:
                self._let_go()

    def _check_and_write(self, now: float) -> str:
        if self.state == LOST or self._released:
            return ""
        claim = self._claim
        if claim is not None:
            content = claim.read()
            found = _parsed(content)
            if found is not None and found.process != self._owner.process:
                self.state = LOST
                return str(self._taken(content))
            if content:
                self._write(claim)
                return ""
            claim.drop()  # the file was deleted
            self._claim, self.state, self._seen = None, FREE, None
        try:
            self.acquire(now)
        except LockTaken as error:
            self.state = LOST
            return str(error)
        return ""

    def release(self) -> None:
        """Release the lock if it is held. Does not raise."""
        self._released = True
        if not self._busy:
            self._let_go()

    def _let_go(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release() if self.state == HELD else claim.drop()
        self.state = LOST if self.state == LOST else FREE

    # -- whose it is --------------------------------------------------------------------------------------------

    def _may_take(self, claim: Claim, now: float) -> bool:
        if claim.made:
            return True
        content = claim.read()
        found = _parsed(content)
        if found is not None and self._is_own(found):
            self._owner = Owner(**{**as_dict(self._owner), "run": found.run, "since": found.since})
            return True
        if found is not None and claim.alone and self._is_gone(found):
            return True
        if self.state != WATCHING:
            self.state, self._seen = WATCHING, (content, now)
        seen, since = self._seen or (content, now)
        if content != seen:
            self.state = FREE
            raise self._taken(content)
        return now - since >= SILENT_S

    def _is_own(self, found: Owner) -> bool:
        """Whether the lock belongs to the chief that this one replaces."""
        return self._restarted and (found.host, found.chief) == (self._owner.host, self._owner.chief)

    def _is_gone(self, found: Owner) -> bool:
        """Whether the holder was a process of this machine that has ended (the operating system released its lock) and
        cannot come back. A process with a launcher may be started again."""
        return found.boot == self._owner.boot and not (found.keeper and self._lives(found.keeper))

    def _taken(self, content: bytes) -> LockTaken:
        return LockTaken(
            f"{self._dir} is in use by {self._named(content)}; wait for its end, stop it, or use another checkpoint_dir"
        )

    def _named(self, content: bytes) -> str:
        found = _parsed(content)
        return f"another run, which {LOCK_FILE} does not name" if found is None else str(found)

    # -- the file -----------------------------------------------------------------------------------------------

    def _write(self, claim: Claim) -> None:
        self._beats += 1
        text = json.dumps({**as_dict(self._owner), "beat": self._beats}, indent=1)
        claim.write(text.ljust(NBYTES - 1).encode() + b"\n")

    def _content(self) -> bytes:
        try:
            return bytes(self._storage.read(self.path))
        except CheckpointError:  # released meanwhile
            return b""


def _parsed(content: bytes) -> Owner | None:
    """The owner that a lock file names; None for anything else."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, Mapping):
        return None
    values = {name: body.get(name) for name in fields_of(Owner)}
    numbers = values["pid"], values["keeper"]
    texts = [value for name, value in values.items() if name not in ("pid", "keeper")]
    if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
        return None
    return Owner(**values)  # type: ignore[arg-type]
