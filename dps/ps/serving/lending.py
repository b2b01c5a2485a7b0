"""Versions that readers on this machine read in place: each is a hold, under the number of the request that asked."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from dps.ps.store.hold import Hold
from dps.ps.store.store import Store


class _Loans:
    """Those of one session."""

    __slots__ = ("below", "open", "over", "wanted")

    def __init__(self) -> None:
        self.open: dict[int, Hold] = {}
        self.over: OrderedDict[int, None] = OrderedDict()
        self.wanted: OrderedDict[int, None] = OrderedDict()
        self.below = 0
        """Under lower numbers it reads nothing any more."""


class Lending:
    """The holds of one shard's sessions. A session that ends, or is lost, gives all of its own back."""

    def __init__(self, store: Store) -> None:
        self._store, self._remembered = store, store.runtime.tuning.serving.remembered
        self._of = defaultdict[int, _Loans](_Loans)

    def want(self, incarnation: int, number: int) -> None:
        """The sender of a push wants values with its result."""
        self._remember(self._of[incarnation].wanted, number)

    def wants(self, incarnation: int, number: int) -> bool:
        """Whether values are wanted with the result of a push under this number, and were not returned yet."""
        loans = self._of.get(incarnation)
        return loans is not None and number in loans.wanted and not (number < loans.below or number in loans.over)

    def lend(self, incarnation: int, number: int) -> Hold | None:
        """A hold for a request; None if there is none to be had."""
        self._store.refresh([])
        hold = self._store.hold(shared=True)
        if hold is not None:
            held = self._of[incarnation].open
            if number in held:
                held[number].release()
            held[number] = hold
        return hold

    def lent(self, incarnation: int, number: int) -> Hold | None:
        """What a request was lent and has not returned."""
        loans = self._of.get(incarnation)
        return None if loans is None else loans.open.get(number)

    def is_over(self, incarnation: int, number: int) -> bool:
        """Whether this request has had its answer and has returned it."""
        loans = self._of.get(incarnation)
        return loans is not None and (number < loans.below or number in loans.over)

    def give_back_below(self, incarnation: int, number: int) -> int:
        """A session has told that it reads nothing under lower numbers; how many holds that ends."""
        loans = self._of[incarnation]
        if number <= loans.below:
            return 0
        loans.below = number
        ended = [key for key in loans.open if key < number]
        for key in ended:
            loans.open.pop(key).release()
        return len(ended)

    def give_back(self, incarnation: int, number: int) -> int:
        """End a hold; what was returned before is left. How many that ends, 1 or 0."""
        loans = self._of[incarnation]
        hold = loans.open.pop(number, None)
        if hold is not None:
            hold.release()
        self._remember(loans.over, number)
        return int(hold is not None)

    def forget(self, incarnation: int) -> None:
        """A session has ended, or was taken for lost and reads on."""
        loans = self._of.pop(incarnation, None)
        if loans is not None:
            for hold in loans.open.values():
                hold.release(abandon=True)

    def _remember(self, numbers: OrderedDict[int, None], number: int) -> None:
        numbers[number] = None
        if len(numbers) > self._remembered:
            numbers.popitem(last=False)
