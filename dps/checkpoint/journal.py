"""The chief's journal: what a restarted chief must know about the run.

It holds the run epoch, and which incarnations were issued and have ended. An ended incarnation is never admitted again,
and a ps drops its push records only after its end is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dps.checkpoint.files import JOURNAL_FILE, join, seal, unseal
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError
from dps.process.record import made, record

FORMAT_VERSION = 1


@record
class JournalState:
    """One state of the run. `settings` is free-form and JSON-able (tuples in it come back as lists).

    `ended` holds the ended incarnations as ranges (first, last), both included, ascending, with gaps between them.
    `members` holds the task names (`worker:3`) and incarnations of the members, `finished` the tasks that ended well,
    and `given_up` those that were lost or never came and are not waited for. `tickets` holds the digests of the
    tickets by which the members' processes are known.
    """

    run_epoch: int = 0
    next_incarnation: int = 1
    ended: tuple[tuple[int, int], ...] = ()
    members: Mapping[str, int] = made(default_factory=dict)
    finished: tuple[str, ...] = ()
    settings: Mapping[str, Any] = made(default_factory=dict)
    given_up: tuple[str, ...] = ()
    tickets: Mapping[str, str] = made(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = [self.run_epoch, self.next_incarnation, *self.members.values()]
        numbers += [bound for span in self.ended for bound in span]
        for number in numbers:
            if isinstance(number, bool) or not hasattr(number, "__index__") or number < 0:
                raise ValueError(f"a journal counts with whole numbers from 0; got {number!r}")
        before = -2
        for first, last in self.ended:
            if not before + 1 < first <= last:
                raise ValueError(f"ended incarnations {self.ended} are not ascending ranges with gaps between them")
            before = last

    def has_ended(self, incarnation: int) -> bool:
        """Whether the journal records the end of this incarnation."""
        return any(first <= incarnation <= last for first, last in self.ended)


class Journal:
    """journal.json in a checkpoint_dir. Only the chief writes it; both calls block on the storage."""

    def __init__(self, storage: Storage, checkpoint_dir: str) -> None:
        self.path = join(checkpoint_dir, JOURNAL_FILE)
        self._storage = storage

    def load(self) -> JournalState | None:
        """The last saved state, or None if there was no run. Raises CheckpointError if the journal is unusable."""
        if not self._storage.exists(self.path):
            return None
        try:
            return _from_json(unseal(self._storage.read(self.path), self.path, FORMAT_VERSION))
        except (CheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = str(error) if isinstance(error, CheckpointError) else f"{self.path} is not a journal: {error!r}"
            raise CheckpointError(
                f"{reason}; put back a copy of it, or stop every task of the earlier run and then delete it: "
                "the next run starts from the newest whole checkpoint"
            ) from error

    def save(self, state: JournalState) -> None:
        """Replace the journal, atomically; on return it survives a power failure."""
        body = {
            "format_version": FORMAT_VERSION,
            "run_epoch": int(state.run_epoch),
            "next_incarnation": int(state.next_incarnation),
            "ended": [[int(first), int(last)] for first, last in state.ended],
            "members": {task: int(incarnation) for task, incarnation in state.members.items()},
            "finished": list(state.finished),
            "settings": dict(state.settings),
            "given_up": list(state.given_up),
            "tickets": dict(state.tickets),
        }
        self._storage.write(self.path, [seal(body)])


def _from_json(body: Mapping[str, Any]) -> JournalState:
    return JournalState(
        run_epoch=body["run_epoch"],
        next_incarnation=body["next_incarnation"],
        ended=tuple((first, last) for first, last in body["ended"]),
        members=dict(body["members"]),
        finished=tuple(body["finished"]),
        settings=dict(body["settings"]),
        given_up=tuple(body.get("given_up", ())),  # not written by the first versions
        tickets=dict(body.get("tickets", {})),
    )
