"""Versions that readers on this machine read in place: each is a hold, under the number of the request that asked."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from dps.ps.store.hold import Hold
from dps.ps.store.store import Store


class _Loans:
    """The versions that are lent to one session."""

    __slots__ = ("below", "open", "over", "wanted")

    def __init__(self) -> None:
        self.open: dict[int, Hold] = {}
        self.over: OrderedDict[int, None] = OrderedDict()
        self.wanted: OrderedDict[int, None] = OrderedDict()
        self.below = 0
        """The session reads nothing under lower numbers any more."""


class Lending:
    """The holds of one shard's sessions. When a session ends or is lost, all of its holds end."""

    def __init__(self, store: Store) -> None:
        self._store, self._remembered = store, store.runtime.tuning.serving.remembered
        self._of = defaultdict[int, _Loans](_Loans)

    def record_wish(self, incarnation: int, number: int, wants: bool) -> None:
        """Note whether the sender of a push wants values with its result."""
        if wants:
            self._remember(self._of[incarnation].wanted, number)

    def is_wanted(self, incarnation: int, number: int) -> bool:
        """Whether values are wanted with the result of a push under this number, and were not returned yet."""
        loans = self._of.get(incarnation)
        return loans is not None and number in loans.wanted and not (number < loans.below or number in loans.over)

    def lend_version(self, incarnation: int, number: int) -> Hold | None:
        """A hold for a request; None if none can be had."""
        store = self._store
        if store.on_device:
            store.refresh([])
        hold = store.hold_shared()
        if hold is not None:
            held = self._of[incarnation].open
            if number in held:
                held[number].release()
            held[number] = hold
        return hold

    def lent(self, incarnation: int, number: int) -> Hold | None:
        """The version that was lent to a request and is not returned yet; None if there is none."""
        loans = self._of.get(incarnation)
        return None if loans is None else loans.open.get(number)

    def is_over(self, incarnation: int, number: int) -> bool:
        """Whether this request was answered, and its hold returned."""
        loans = self._of.get(incarnation)
        return loans is not None and (number < loans.below or number in loans.over)

    def give_back_below(self, incarnation: int, number: int) -> int:
        """A session reads nothing under lower numbers any more. Returns how many holds this ends."""
        loans = self._of[incarnation]
        if number <= loans.below:
            return 0
        loans.below = number
        ended = [key for key in loans.open if key < number] if loans.open else ()
        for key in ended:
            loans.open.pop(key).release()
        return len(ended)

    def give_back(self, incarnation: int, number: int) -> int:
        """End a hold, if it was not returned before. Returns how many holds this ends, 1 or 0."""
        loans = self._of[incarnation]
        hold = loans.open.pop(number, None)
        if hold is not None:
            hold.release()
        self._remember(loans.over, number)
        return int(hold is not None)

    def forget_session(self, incarnation: int) -> None:
        """A session has ended, or was given up as lost and may still read."""
        loans = self._of.pop(incarnation, None)
        if loans is not None:
            for hold in loans.open.values():
                hold.release(abandon=True)

    def _remember(self, numbers: OrderedDict[int, None], number: int) -> None:
        numbers[number] = None
        if len(numbers) > self._remembered:
            numbers.popitem(last=False)
