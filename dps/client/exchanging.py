"""Calls that all workers in sync make together: each brings arrays and gets those of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dps.client.connection import Connection
from dps.client.membership import Membership
from dps.client.waiting import ThreadGuard, Waiter
from dps.collectives.packing import pack_arrays, unpack_arrays
from dps.errors import ConfigError, DeadlineExceeded
from dps.messages.replies import Push
from dps.messages.sessions import APART, FIRST, TRAINED, Exchange, Exchanged
from dps.process.telemetry import log
from dps.transport.wire import Array

LARGEST_NBYTES = 64 << 20
"""The most that a worker may bring. The step ps keeps the parts of all workers, and sends all of them to each."""


class Exchanging:
    """These calls of one session. The ps finds a call by its step and by its place after the last push."""

    def __init__(self, connection: Connection, waiter: Waiter, turns: ThreadGuard) -> None:
        self._connection, self._waiter, self._turns = connection, waiter, turns
        self._place = self._call = 0
        self._has_pushed = False
        self._trained: Membership | None = None
        """The membership under which the last push was accepted; None if it was not."""

    def pushed(self, push: Push | None) -> None:
        """The session has pushed; None: the push was refused."""
        self._place, self._has_pushed = 0, True
        self._trained = self._connection.membership if push is not None and push.accepted else None

    def gather(self, what: str, arrays: Sequence[Array], timeout: float) -> list[list[Array]]:
        """The arrays of all workers, in the order of their tasks. Blocks until all have called it.

        Raises:
            ConfigError: Workers make different calls, or arrays that are too large.
            DeadlineExceeded: A worker did not come in time; the message names it.
            TaskLost: The run has ended.
        """
        head, body = pack_arrays(arrays)
        if head.size + body.size > LARGEST_NBYTES:
            raise ConfigError(
                f"{what}: got {body.size} bytes; through a ps a worker brings at most {LARGEST_NBYTES}; "
                "MultiWorkerMirrored has no limit"
            )
        run = np.concatenate([head, body])
        return self._turns.run(what, self._gather, what, int(head.size), run, timeout)

    def _gather(self, what: str, head: int, run: Array, timeout: float) -> list[list[Array]]:
        self._waiter.check_open()
        place, call = self._place, self._call
        self._place, self._call = place + 1, call + 1

        def ask(deadline: float) -> Exchanged:
            connection = self._connection
            membership, ps = connection.membership, connection.agreed.step_ps
            since = TRAINED if membership is self._trained else APART if self._has_pushed else FIRST
            where = membership.epoch, connection.steps.local_step, place, call, since
            answer = connection.ask(
                Exchange(*where, what, head, (run,)), deadline, f"ps:{ps}", connection.peers[ps].ref
            )  # fmt: skip
            assert isinstance(answer, Exchanged)
            return answer

        try:
            found: Exchanged = self._waiter.retrying(ask, timeout)
        except DeadlineExceeded:
            self._place, self._call = place, call  # the same call is made again
            raise
        if found.without:
            log.warning("%s: %s: %s", self._connection.home.name, what, found.without)
        return [unpack_arrays(row, size) for row, size in zip(found.arrays, found.heads, strict=True)]
