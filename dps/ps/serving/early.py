"""Sends finished parts of the next version to a waiting pull while the push is still arriving.

So both directions of a connection are used at once. Finished ranges are sent immediately, except the last piece, which
is sent when the version is published. If the version is dropped (NaN in a later piece, or another session's push in
between), the pull waits on. It is answered later under a higher number, and its session then forgets these pieces.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.ps.serving.sending import Answer
from dps.ps.shard import Shard
from dps.ps.store.draft import Draft


class Early:
    """The listener of one draft: the answer to the pull that waits for its push."""

    def __init__(self, shard: Shard, incarnation: int, number: int, draft: Draft) -> None:
        """For push `number` of the session `incarnation`, of which nothing is written yet."""
        self._shard, self._push, self._draft = shard, (incarnation, number), draft
        self._began, self._decided = shard.node.runtime.now(), False
        self._written: list[tuple[int, int]] = []
        self._nbytes = 0
        self._answer: Answer | None = None
        self._over: Callable[[bool], None] | None = None

    def wrote(self, offset: int, nbytes: int) -> None:
        """These bytes of the run are finished: send what can be sent, once it is known how fast the push comes."""
        if self._answer is not None:
            self._answer.made(offset, nbytes)
        elif not self._decided:
            self._written.append((offset, nbytes))
            self._nbytes += nbytes
            telling = self._shard.node.runtime.tuning.intake.telling
            if telling * self._nbytes >= self._shard.layout.gradient_nbytes or self._is_slow():
                self._decide()

    def published(self) -> None:
        """The push is applied."""
        answer, over = self._answer, self._over
        if answer is not None and over is not None:
            over(True)
            answer.send_all()

    def dropped(self) -> None:
        """The version will never be."""
        answer, over = self._answer, self._over
        if answer is not None and over is not None:
            answer.drop()
            over(False)

    def _is_slow(self) -> bool:
        """Whether the push clearly comes over a slow connection. The first piece came before it was looked at."""
        serving, nbytes = self._shard.node.runtime.tuning.serving, self._nbytes - self._written[0][1]
        took_s = self._shard.node.runtime.now() - self._began
        return nbytes > 0 and took_s >= serving.early_told_s and nbytes < serving.slow_nbytes_s * took_s

    def _decide(self) -> None:
        """Begin the answer if the push comes slowly."""
        runtime, self._decided = self._shard.node.runtime, True
        if self._nbytes <= runtime.tuning.serving.fast_nbytes_s * (runtime.now() - self._began):
            found = self._shard.reading.answer_draft(*self._push, self._draft)
            if found is not None:
                self._answer, self._over = found
                for offset, nbytes in self._written:
                    self._answer.made(offset, nbytes)
