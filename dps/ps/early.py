"""Values that leave while the push comes, or is applied, that their asker waits for: both directions are full at once.

What of the next version is made is sent at once, but for the last piece: that leaves when the version is published. If
it comes to nothing, because of NaN in a later piece or because another session's push came in between, the pull waits
on, and is answered later under a higher number, on which its asker forgets the pieces of this answer.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.ps.sending import Answer

FAST_NBYTES_S = 1e9
"""Of a push that comes faster the connection is not what takes its time: on two cores, over loopback, a step of SGD
took 15 to 20 % longer when both directions were used at once, for it is the processors that are full."""


class Early:
    """One such answer."""

    def __init__(self, answer: Answer, read: Callable[[], None], waits: Callable[[], None]) -> None:
        """`read` is called when the values are those of the current version, `waits` when the pull waits on."""
        self._answer, self._read, self._waits = answer, read, waits

    def made(self, offset: int, nbytes: int) -> bool:
        """As `Answer.made`."""
        return self._answer.made(offset, nbytes)

    def published(self) -> None:
        """The push is applied."""
        self._read()
        self._answer.send_all()

    def drop(self) -> None:
        """It has come to nothing."""
        self._answer.drop()
        self._waits()
