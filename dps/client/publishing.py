"""A session's published versions: publishes one, waits for a newer one, and pulls one by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np

from dps.client.compressing import PackedPull
from dps.client.connection import Connection
from dps.client.lanes import PsPeer
from dps.client.pulling import Pulls, check_apart
from dps.client.waiting import Operation, Waiter
from dps.errors import ConfigError, DeadlineExceeded, ProtocolError
from dps.messages.replies import Published
from dps.messages.runs import AskPublished, Publish, PublishedIs
from dps.messages.sessions import NO_BASE, Pull, Values
from dps.process.telemetry import log
from dps.transport.dtypes import dtype_of
from dps.transport.message import Message, changed
from dps.transport.wire import Array
from dps.variables.packed import ChangesReader, PackedLayout
from dps.variables.plan import Part, Plan
from dps.variables.sparse_changes import patch


class Publications:
    """These calls of one session."""

    def __init__(self, connection: Connection, waiter: Waiter, pulls: Pulls) -> None:
        self._connection, self._waiter, self._pulls = connection, waiter, pulls

    def publish(self, label: str, timeout: float | None) -> Published:
        """As Session.publish."""
        self._waiter.check_open()
        if not isinstance(label, str):
            raise TypeError(f"publish: got {label!r:.80} as label, wanted text")
        connection = self._connection
        answer = self._waiter.retrying(
            lambda deadline: connection.ask(Publish(connection.number, label), deadline, "the publication"), timeout
        )
        assert isinstance(answer, PublishedIs)
        if label not in ("", answer.label):
            log.warning(
                "%s: publish: no version gets the label %r: these values are version %d already, with the label %r",
                connection.home.name, label, answer.number, answer.label,
            )  # fmt: skip
        return Published(answer.run, answer.number, answer.label, answer.step)

    def pull(self, published: Published | int, names: Sequence[str] | None, out: Any, timeout: float | None) -> Any:
        """As Session.pull of a published version."""
        self._waiter.check_open()
        if isinstance(published, Published):
            run = str(self._connection.agreed.settings.get("run", ""))
            if published.run != run:
                raise ValueError(f"pull: {published} is of another run than this, whose name is {run}")
            published = published.number
        if isinstance(published, bool) or not isinstance(published, int) or published < 1:
            raise ValueError(f"pull: got published={published!r:.80}, wanted a dps.Published or its number, from 1")
        if out is None:
            return self._pulls.apart(published, names, timeout)
        check_apart(self._connection.agreed.plan, out)
        places = self._pulls.places(out, names)
        self._pulls.fill(places, self._pulls.apart(published, names, timeout))
        return out

    def newer(self, run: str, newer_than: int, stop: Callable[[], bool]) -> PublishedIs | None:
        """The newest version once it has a higher number or is of another run ("": of any). Blocks, through rollbacks,
        until `stop()`; then None."""
        connection = self._connection

        def ask(deadline: float) -> Message | None:
            message = AskPublished(connection.number, run, newer_than)
            with suppress(DeadlineExceeded):
                return connection.ask(message, deadline, "the chief", connection.chief, stop)
            return None

        found: Message | None = None
        while not isinstance(found, PublishedIs) and not stop():
            found = self._waiter.retrying(ask, ASK_AGAIN_S)
        return found if isinstance(found, PublishedIs) else None

    def fetch(
        self, number: int, form: str, names: Sequence[str] | None, timeout: float, bases: Bases | None = None
    ) -> Fetched:
        """The values of a published version, those of float32 and float64 cast to `form` ("": as they are). `bases`:
        what an earlier call left, and this one leaves, so that only changes are fetched. Raises ValueError if the ps do
        not keep the version, and ProtocolError if what came does not lead to it; then the bases are empty."""
        operation = _VersionPull(self._connection, number, form, names, {} if bases is None else bases)
        try:
            self._waiter.wait(operation, timeout, f"a pull of the published version {number}")
            return operation.values()
        except ProtocolError:
            if bases is not None:
                bases.clear()
            raise
        finally:
            operation.drop()

    @property
    def plan(self) -> Plan:
        """The plan of the run's variables."""
        return self._connection.agreed.plan

    def check_names(self, names: Sequence[str] | None) -> None:
        """Raise ConfigError for names that no variable of the run has."""
        plan, by_name = self._connection.agreed.plan, self._connection.agreed.plan.by_name
        if tables := [name for name in names or () if name in plan.tables_by_name]:
            raise ConfigError(f"{tables[0]} is a keyed table, which published versions leave out: use session.lookup")
        if unknown := [name for name in names or () if name not in by_name]:
            raise ConfigError(f"no variables {unknown}; there are {list(by_name)[:10]}")


CASTS: dict[str, Any] = {"bfloat16": np.dtype("<u2"), "float16": np.dtype("<f2")}
"""The dtype in which cast values are kept here: numpy has no bfloat16."""
ASK_AGAIN_S = 30.0
"""How long one request for a newer version lasts."""

Fetched = tuple[dict[str, tuple[str, Array]], int]
"""By the names of variables how their values were cast, and these, to be read: a bfloat16 is the upper half of a
float32, as uint16. And the bytes that came."""


Bases = dict[int, tuple[int, str, Array]]
"""By ps: the number of the published version that was fetched last, its form, and its bytes, which nobody changes."""


class _CastPull(PackedPull):
    """A pull of one shard of a published version, of which the cast bytes are kept as they come."""

    def _finish(self, piece: Values, values: Array | list[Array]) -> None:
        assert isinstance(values, np.ndarray), "what is packed is copied"
        base = self.base if piece.base != NO_BASE else None
        try:
            data = values if base is None else changed_by(self.packed, base, values)
        except ProtocolError as error:  # the answer is here, and no other will come
            self.error = error
            return
        if crc32(data.data) != piece.checksum:
            what = "the bytes" if base is None else "the changes"
            self.error = ProtocolError(f"{what} of a published version from ps:{self.peer.ps} do not lead to it")
            return
        self.arrived = data

    def parts_of_it(self) -> dict[int, tuple[str, Array]]:
        """The cast and the values of each part, by its index."""
        assert self.arrived is not None, "it is complete"
        found = {}
        for part, form, offset, nbytes in self.packed.entries:
            arena, _ = self.peer.layout.place[part.index]
            dtype = CASTS[form] if form else dtype_of(self.peer.layout.arenas[arena].dtype)
            data = self.arrived[offset : offset + nbytes].view(dtype)
            found[part.index] = form, data.reshape(part.shape)
        return found


def changed_by(packed: PackedLayout, base: Array, arrived: Array) -> Array:
    """The bytes that a chain of changes makes of others: each length, then the changes. Raises ProtocolError if they do
    not fit."""
    data, reader = base.copy(), ChangesReader(arrived)
    while reader.left:
        nbytes = int.from_bytes(reader.take_bytes(4).tobytes(), "little")
        patch(packed, data, reader.take_bytes(nbytes))
    return data


class _VersionPull(Operation):
    """A pull of a published version: a transfer per ps, made anew after a rollback."""

    def __init__(
        self, connection: Connection, number: int, form: str, names: Sequence[str] | None, bases: Bases
    ) -> None:
        self._connection, self._number, self._form, self._bases = connection, number, form, bases
        self._names = list(dict.fromkeys(names)) if names is not None else None
        self._transfers: dict[int, _CastPull] = {}
        self._incarnation = -1

    def start(self) -> None:
        connection = self._connection
        if self._incarnation == connection.caller.incarnation:
            return
        self.drop()
        self._incarnation = connection.caller.incarnation
        wanted = {part.index for _, parts in self._variables() for part in parts}
        self._transfers = {}
        for peer in connection.peers.values():
            here = [index for index in peer.layout.indices if index in wanted]
            if here:
                self._transfers[peer.ps] = self._transfer(peer, here)
                self._transfers[peer.ps].begin()

    def _transfer(self, peer: PsPeer, parts: list[int]) -> _CastPull:
        floats = ("<f4", "<f8") if self._form else ()
        cast = [index for index in parts if peer.layout.arenas[peer.layout.place[index][0]].dtype in floats]
        pull = Pull(
            self._connection.membership.epoch, 0, 0, 0, -1, parts, released=peer.lane.all_released_below(),
            packed=[[self._form or "bfloat16", cast]], published=self._number,
        )  # fmt: skip
        base, form, data = self._bases.get(peer.ps, (NO_BASE, "", None))
        if form == repr((pull.parts, pull.packed)):
            pull = changed(pull, base=base)
        transfer = _CastPull(peer, pull, lambda ps: np.empty(0, np.uint8))
        transfer.base = data if pull.base != NO_BASE else None
        return transfer

    def _variables(self) -> list[tuple[str, tuple[Part, ...]]]:
        plan = self._connection.agreed.plan
        names = list(plan.by_name) if self._names is None else self._names
        return [(name, plan.parts_of[plan.by_name[name]]) for name in names]

    @property
    def complete(self) -> bool:
        return self._incarnation >= 0 and all(transfer.complete for transfer in self._transfers.values())

    def requests(self) -> Iterable[_CastPull]:
        return self._transfers.values()

    def values(self) -> Fetched:
        """The values by name. The operation is complete, and no ps has refused."""
        for ps, transfer in self._transfers.items():
            assert transfer.arrived is not None, "it is complete"
            self._bases[ps] = self._number, transfer.packed.key, transfer.arrived
        parts = {i: part for transfer in self._transfers.values() for i, part in transfer.parts_of_it().items()}
        found = {}
        for name, of_it in self._variables():
            form, own = parts[of_it[0].index][0], [parts[part.index][1] for part in of_it]
            found[name] = form, own[0] if len(own) == 1 else np.concatenate(own)
        return found, sum(transfer.received for transfer in self._transfers.values())

    def drop(self) -> None:
        """Forget the requests."""
        for transfer in self._transfers.values():
            transfer.drop()
