"""The independent count: how many pushes of each worker its ledger has, run epoch by run epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.chaos import model
from tests.chaos.evidence import Evidence, Saved
from tests.chaos.ledger import Entry, NothingNew, Opened, RolledBack, Saw, Sent, Settled, Values

E = TypeVar("E", Saw, NothingNew)
Counts = dict[str, float]
"""By variable: how many of a worker's pushes are in its values."""


@dataclass(frozen=True)
class Account:
    """A worker's pushes in one run epoch. `sure` were accepted; `pending` of these belong to a synchronous step that is
    not complete yet. Of `open` ones nobody knows whether they were applied: they have no result, or were given up when
    the session joined again."""

    sure: int = 0
    pending: int = 0
    open: int = 0


class Book:
    """One worker's account in each run epoch; filled entry by entry. `sync`: a push may be accepted for a step that is
    complete later. The worker took a token that was left then, and its step did not rise. When it pushes once more for
    this step, rows count both pushes as one, for they are divided by the number of pushes that touched them."""

    def __init__(self, sync: bool) -> None:
        self._sync = sync
        self._sure: Counter[int] = Counter()
        self._open: Counter[int] = Counter()
        self._on_way: dict[int, Sent] = {}
        self._step = self._pending = 0

    def account(self, epoch: int) -> Account:
        """Pushes on their way count as open, in the epoch in which they were sent."""
        on_way = sum(1 for sent in self._on_way.values() if sent.epoch == epoch)
        return Account(self._sure[epoch], self._pending, self._open[epoch] + on_way)

    def take(self, entry: Entry) -> None:
        """Take note of the next entry of the ledger."""
        if isinstance(entry, Opened):  # maybe in another process: what the one before had on its way has no result
            self._open.update(sent.epoch for sent in self._on_way.values())
            self._on_way.clear()
        if isinstance(entry, Opened | RolledBack):
            self._step, self._pending = entry.step, 0
        elif isinstance(entry, Sent):
            self._on_way[entry.number] = entry
        elif isinstance(entry, Settled):
            self._settle(entry)

    def _settle(self, entry: Settled) -> None:
        sent = self._on_way.pop(entry.number)
        again = self._pending > 0
        if entry.step > self._step:
            self._step, self._pending = entry.step, 0
        elif entry.accepted and self._sync:
            self._pending = 1
        if entry.accepted and (sent.incarnation == entry.incarnation or sent.epoch == entry.epoch):
            self._sure[entry.epoch] += not again
        elif entry.accepted:  # before a ps left in order or after: one of the two epochs has it
            self._open.update((sent.epoch, entry.epoch))
        elif sent.incarnation != entry.incarnation:
            self._open[sent.epoch] += 1

    @property
    def epochs(self) -> set[int]:
        """The run epochs in which it pushed."""
        return {*self._sure, *self._open, *(sent.epoch for sent in self._on_way.values())}


def book(evidence: Evidence, entries: Sequence[Entry]) -> Book:
    """A worker's whole ledger."""
    made = Book(evidence.case.mode == "sync")
    for entry in entries:
        made.take(entry)
    return made


def counts(values: Values) -> Counts | str:
    """Values of a worker's part as numbers of pushes; a sentence where they are no such numbers."""
    found: Counts = {}
    for name, (low, high) in values.items():
        if low != high:
            return f"{name} is torn: its elements lie between {low:g} and {high:g}"
        found[name] = -low / model.unit(name)
    return found


def counted(evidence: Evidence) -> list[str]:
    """The variables whose values count a worker's pushes. A synchronous step divides dense gradients, so there only
    rows do."""
    kind = "rows" if evidence.case.mode == "sync" else evidence.case.pushes
    return model.names(kind)


def base(evidence: Evidence, epoch: int) -> Saved | None:
    """The checkpoint that a run epoch begins from: the newest one of an earlier epoch. None: it begins from zeros."""
    return next((saved for saved in reversed(evidence.saved) if saved.epoch < epoch), None)


def seen(evidence: Evidence, entries: Sequence[Entry], kind: type[E]) -> list[tuple[E, Account]]:
    """The entries of one kind, each with the account of its run epoch at that moment."""
    found: list[tuple[E, Account]] = []
    own = Book(evidence.case.mode == "sync")
    for entry in entries:
        own.take(entry)
        if isinstance(entry, kind):
            found.append((entry, own.account(entry.epoch)))
    return found
