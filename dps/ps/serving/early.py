"""Sends finished parts of the next version to a waiting pull while the push is still arriving.

So both directions of a connection are used at once. Finished ranges are sent immediately, except the last piece, which
is sent when the version is published. If the version is dropped (NaN in a later piece, or another session's push in
between), the pull waits on. It is answered later under a higher number, and its session then forgets these pieces.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.ps.serving.sending import Answer


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
