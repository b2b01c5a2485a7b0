"""A bounded queue as a state machine: puts and gets with numbers in, items and results out. No clock, no sockets.

An item that was given to a client stays here until the client says that it came. When the client is lost before, it
goes back to its place in the order, and the client is told that it is not its own. So each accepted item is got once.

    items <= capacity, but for those that came back
    each accepted item is in exactly one place: in `items`, given to one client, or finished
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dps.errors import Aborted, ConfigError, ProtocolError

WINDOW = 64
"""The most gets of one client that may be open at one time."""

ACCEPTED, WAITING, MISSING, REFUSED = "accepted", "waiting", "missing", "refused"
"""The outcome of a put. Missing: it has not come, or was withdrawn. Refused: the queue is closed."""


class QueuedItem(NamedTuple):
    """An item that was accepted; `order` rises."""

    order: int
    value: Any


class Given(NamedTuple):
    """An action: an item for a get."""

    asker: Any
    number: int
    value: Any


class PutDone(NamedTuple):
    """An action: a put has its result."""

    asker: Any
    number: int
    result: str


class Ended(NamedTuple):
    """An action: no item will come for a get any more, because the queue is closed and empty."""

    asker: Any


Action = Given | PutDone | Ended
Client = int | tuple[str, int]
"""A user of a queue: the ticket of a process and the number that the process gave, or a number within this process."""


@dataclass
class QueueClient:
    """The state of one client of the queue."""

    name: str
    address: str
    put_number: int = 0
    put_result: str = MISSING
    floor: int = 1
    given: dict[int, QueuedItem] = field(default_factory=dict)
    """The items that were given and not acknowledged, by the number of the get."""
    finished: set[int] = field(default_factory=set)
    """The gets from the floor on whose items are the client's."""


class QueueState:
    """One queue and its clients. An `asker` is the sender to whom an action is answered; the last one of a request
    counts."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.capacity, self.closed = name, capacity, False
        self.clients: dict[Client, QueueClient] = {}
        self.items: list[QueuedItem] = []
        """The items, in order."""
        self._accepted = 0
        self._putting: dict[Client, tuple[Any, Any]] = {}
        """The values that wait for room, and their askers, by client, in the order in which they came."""
        self._getting: dict[tuple[Client, int], Any] = {}
        """The waiting gets: askers by client and number, in the order in which they came."""
        self.last_put = self.last_got = ""
        """The clients that got and put the last items."""

    # -- clients -----------------------------------------------------------------------------------------------

    def add_client(self, client: Client, name: str, address: str) -> None:
        """A client begins; a second call changes nothing."""
        self.clients.setdefault(client, QueueClient(name, address))

    def remove_client(self, client: Client) -> list[Action]:
        """A client ends; its state is dropped."""
        if client not in self.clients:
            return []
        self._release_client(client)
        del self.clients[client]
        return self._serve_waiting()

    def drop_node(self, address: str) -> list[Action]:
        """A node is lost: items that its clients have not acknowledged go back, and its clients wait for nothing. Their
        numbers are kept, because they may come back."""
        for number, client in self.clients.items():
            if client.address == address:
                self._release_client(number)
        return self._serve_waiting()

    def _release_client(self, client: Client) -> None:
        known = self.clients[client]
        self._give_back(known, list(known.given))
        for asked in [asked for asked in self._getting if asked[0] == client]:
            del self._getting[asked]
        if self._putting.pop(client, None) is not None:
            known.put_result = MISSING

    def _client_of(self, client: Client) -> QueueClient:
        known = self.clients.get(client)
        if known is None:
            raise Aborted(f"queue {self.name!r} does not know this client; open it again with dps.data.queue")
        return known

    # -- puts --------------------------------------------------------------------------------------------------

    def put(self, client: Client, number: int, value: Any, asker: Any) -> list[Action]:
        """A client puts an item, perhaps again."""
        known = self._client_of(client)
        if number < known.put_number or (number == known.put_number and known.put_result != MISSING):
            return self.find_put_result(client, number, asker)
        self._putting.pop(client, None)  # a later put: the one before is not waited for any more
        known.put_number, known.put_result = number, REFUSED if self.closed else WAITING
        if self.closed:
            return [PutDone(asker, number, REFUSED)]
        self._putting[client] = value, asker
        return self._serve_waiting()

    def find_put_result(self, client: Client, number: int, asker: Any) -> list[Action]:
        """Ask for the outcome of a put. No action while it waits."""
        known = self._client_of(client)
        result = known.put_result if number == known.put_number else MISSING
        if result == WAITING:
            self._putting[client] = self._putting[client][0], asker
            return []
        return [PutDone(asker, number, result)]

    def is_put_waiting(self, client: Client, number: int) -> bool:
        """Whether a put waits for room."""
        known = self._client_of(client)
        return number == known.put_number and known.put_result == WAITING

    def withdraw_put(self, client: Client, number: int) -> bool:
        """The client no longer waits for the put. Returns whether it was accepted; if not, it never will be."""
        known = self._client_of(client)
        if number == known.put_number and known.put_result == ACCEPTED:
            return True
        if number >= known.put_number:
            self._putting.pop(client, None)
            known.put_number, known.put_result = number + 1, MISSING  # whatever comes late under its number is old
        return False

    # -- gets --------------------------------------------------------------------------------------------------

    def get(self, client: Client, number: int, floor: int, asker: Any) -> list[Action]:
        """A client asks for an item, perhaps again."""
        known = self._client_of(client)
        self._raise_floor(client, known, floor)
        if number < known.floor or number in known.finished:
            return self._serve_waiting()
        if number >= known.floor + WINDOW:
            raise ProtocolError(f"get {number} while {known.floor} is open; at most {WINDOW} gets are open at one time")
        if number in known.given:
            return [*self._serve_waiting(), Given(asker, number, known.given[number].value)]
        self._getting[client, number] = asker
        return self._serve_waiting()

    def is_get_waiting(self, client: Client, number: int) -> bool:
        """Whether a get waits for an item."""
        return (client, number) in self._getting

    def finish_get(self, client: Client, number: int) -> tuple[bool, list[Action]]:
        """The client has received the item of a get, as it says, perhaps again. Returns whether the item is the
        client's."""
        known = self._client_of(client)
        if known.given.pop(number, None) is not None:
            known.finished.add(number)
        return number in known.finished, self._serve_waiting()

    def drop_gets(self, client: Client, number: int) -> list[Action]:
        """The client no longer waits for a get and all before it."""
        self._raise_floor(client, self._client_of(client), number + 1)
        return self._serve_waiting()

    def _raise_floor(self, client: Client, known: QueueClient, floor: int) -> None:
        if floor <= known.floor:
            return
        known.floor = floor
        known.finished = {number for number in known.finished if number >= floor}
        self._give_back(known, [number for number in known.given if number < floor])
        for asked in [asked for asked in self._getting if asked[0] == client and asked[1] < floor]:
            del self._getting[asked]

    def _give_back(self, known: QueueClient, numbers: list[int]) -> None:
        for number in numbers:
            bisect.insort(self.items, known.given.pop(number))

    # -- all ---------------------------------------------------------------------------------------------------

    def close(self) -> list[Action]:
        """Close the queue: no more items are accepted; those that are there can be got."""
        self.closed = True
        refused: list[Action] = []
        for client, (_, asker) in self._putting.items():
            known = self.clients[client]
            known.put_result = REFUSED
            refused.append(PutDone(asker, known.put_number, REFUSED))
        self._putting.clear()
        return [*refused, *self._serve_waiting()]

    def _serve_waiting(self) -> list[Action]:
        """Accept items that wait for room, and give items to waiting gets, as long as that is possible."""
        actions: list[Action] = []
        while (self._putting and len(self.items) < self.capacity) or (self._getting and self.items):
            if self._getting and self.items:
                actions.append(self._give_item())
            else:
                actions.append(self._accept_put())
        if self._getting and self.is_over:
            actions += [Ended(asker) for asker in self._getting.values()]
            self._getting.clear()
        return actions

    def _accept_put(self) -> PutDone:
        client = next(iter(self._putting))
        value, asker = self._putting.pop(client)
        self._accepted += 1
        self.items.append(QueuedItem(self._accepted, value))
        known = self.clients[client]
        known.put_result, self.last_put = ACCEPTED, known.name
        return PutDone(asker, known.put_number, ACCEPTED)

    def _give_item(self) -> Given:
        client, number = asked = next(iter(self._getting))
        asker = self._getting.pop(asked)
        entry, known = self.items.pop(0), self.clients[client]
        known.given[number], self.last_got = entry, known.name
        return Given(asker, number, entry.value)

    @property
    def is_over(self) -> bool:
        """Whether it is closed and no item can come any more; an item that was given may still come back."""
        return self.closed and not self.items and not any(client.given for client in self.clients.values())

    def entries(self) -> Iterator[QueuedItem]:
        """All items that were accepted and are not finished."""
        yield from self.items
        for client in self.clients.values():
            yield from client.given.values()


def check_capacity(queue: QueueState, capacity: int) -> None:
    """Raise ConfigError if a client wants another capacity than the queue has."""
    if capacity and capacity != queue.capacity:
        raise ConfigError(
            f"queue {queue.name!r}: got capacity {capacity}, it was made with {queue.capacity}; give the same, or none"
        )
