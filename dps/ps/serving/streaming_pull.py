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


class StreamingPull:
    """The listener of one draft: the answer to the pull that waits for its push."""

    def __init__(self, shard: Shard, incarnation: int, number: int, draft: Draft) -> None:
        """For push `number` of the session `incarnation`, of which nothing was written yet."""
        self._shard, self._push, self._draft = shard, (incarnation, number), draft
        self._began, self._decided = shard.node.runtime.now(), False
        self._written: list[tuple[int, int]] = []
        self._nbytes = 0
        self._begun: tuple[Answer, Callable[[bool], None]] | None = None
        """The answer, and what to call when it is published or dropped."""

    def wrote(self, offset: int, nbytes: int) -> None:
        """These bytes of the run are finished. Sends what can be sent, once the rate of the push is known."""
        if self._begun is not None:
            self._begun[0].send_finished(offset, nbytes)
        elif not self._decided:
            self._written.append((offset, nbytes))
            self._nbytes += nbytes
            telling, slow = self._shard.node.runtime.tuning.intake.telling, self._is_slow()
            if slow or telling * self._nbytes >= self._shard.layout.gradient_nbytes:
                self._decide(slow)

    def published(self) -> None:
        """The push is applied."""
        if self._begun is not None:
            answer, over = self._begun
            over(True)
            answer.send_all()

    def dropped(self) -> None:
        """The version was dropped."""
        if self._begun is not None:
            answer, over = self._begun
            answer.drop_rest()
            over(False)

    def _is_slow(self) -> bool:
        """Whether the push clearly comes over a slow connection: values last left slowly to this session, or the push
        arrives slowly. Its first piece came before its time was taken."""
        serving, nbytes = self._shard.node.runtime.tuning.serving, self._nbytes - self._written[0][1]
        if 0 < self._shard.ledgers[self._push[0]].rate < serving.slow_nbytes_s:
            return True
        took_s = self._shard.node.runtime.now() - self._began
        return nbytes > 0 and took_s >= serving.early_told_s and nbytes < serving.slow_nbytes_s * took_s

    def _decide(self, slow: bool) -> None:
        """Begin the answer if the push arrives slowly, or at least more slowly than processors allow."""
        runtime, self._decided = self._shard.node.runtime, True
        if slow or self._nbytes <= runtime.tuning.serving.fast_nbytes_s * (runtime.now() - self._began):
            self._begun = self._shard.reading.answer_draft(*self._push, self._draft)
            if self._begun is not None:
                for offset, nbytes in self._written:
                    self._begun[0].send_finished(offset, nbytes)
