"""The simulated network: addresses, connections, in-flight messages, partitions."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import inf, nextafter
from random import Random
from typing import Any

from dps.cluster.address import Address, parse, with_port
from dps.errors import ConfigError, Unavailable
from dps.transport.endpoint import Connected, Delivery, Disconnected, Event
from dps.transport.sim.connection import ConnectionState, Cut, InFlight, Port, SimulatedConnection
from dps.transport.sim.machines import Rack
from dps.transport.sim.network import Link, LinkDirection, Moving, Network
from dps.transport.sim.scheduler import Scheduler, TaskGroup
from dps.transport.sim.trace import Trace

_FIRST_PORT = 49152
"""The first port that is assigned for port 0."""


class Fabric:
    """All addresses and connections of one world.

    More than 12 attributes: six tables of one network, which change together at each event, and what it draws from.
    """

    def __init__(
        self, seed: int | str, network: Network, scheduler: Scheduler, trace: Trace, rack: Rack | None = None
    ) -> None:
        self.network = network
        self.slow: dict[str, float] = {}
        """A factor on all delays to and from a process, by name."""
        self._scheduler = scheduler
        self._trace = trace
        self._rack = rack
        self._draw = Random(f"{seed}/network").random
        self._routes = Random(f"{seed}/identities")
        self._bound: dict[str, Port] = {}
        self._waiting: dict[str, list[SimulatedConnection]] = {}
        self._up: dict[SimulatedConnection, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._cuts: list[Cut] = []
        self._next_port = _FIRST_PORT
        self._arrive = self._arrived

    def greet(self, connection: SimulatedConnection) -> None:
        """Deliver the message that opens a connection, if there is one, before all others."""
        header = connection.client.greetings.get(connection.address)
        if header and connection.state is ConnectionState.UP and connection.server is not None:
            self.deliver_event(connection.server, Delivery(connection.route, header, []))

    def greet_soon(self, connection: SimulatedConnection) -> None:
        """The same for a connection that may be up already."""
        self._scheduler.push(self._scheduler.now, self.greet, connection)

    # Addresses

    def bind(self, port: Port, text: str) -> None:
        """Give `port` an address, a free one for port 0. Raises Unavailable if it is taken."""
        address = parse(text)
        if address.scheme == "tcp" and address.port == 0:
            address = self._free(port.owner, address)
        key = _key(port.owner, address)
        taken = self._bound.get(key)
        if taken is not None:
            raise Unavailable(
                f"{port.owner.name} cannot listen at {address}: {taken.owner.name} has it; "
                "choose another address, or port 0 for any"
            )
        port.address, port.key = str(address), key
        self._bound[key] = port
        for connection in self._waiting.pop(key, []):
            self.open(connection)

    def _free(self, owner: TaskGroup, address: Address) -> Address:
        while True:
            found = with_port(address, self._next_port)
            self._next_port = self._next_port + 1 if self._next_port < 65535 else _FIRST_PORT
            if _key(owner, found) not in self._bound:
                return found

    # Connections

    def connect(self, port: Port, text: str) -> SimulatedConnection:
        """Open a connection and keep it up, or return the one for another spelling of the address."""
        address = parse(text)
        if address.scheme == "tcp" and address.port == 0:
            raise ConfigError(f"cannot connect to {text}: port 0 means 'choose one'; give the port that was chosen")
        key = _key(port.owner, address)
        for connection in port.connections.values():
            if connection.key == key:
                break
        else:
            connection = SimulatedConnection(port, text, key)
            self.open(connection)
        port.connections[text] = connection
        return connection

    def open(self, connection: SimulatedConnection) -> None:
        """Try to establish a connection. If no peer can be reached, it waits for one."""
        server = self._bound.get(connection.key)
        if connection.state is ConnectionState.CLOSED:
            return
        if server is None or not self._in_reach(connection.client, server):
            connection.state = ConnectionState.WAITING
            self._waiting.setdefault(connection.key, []).append(connection)
            return
        connection.state = ConnectionState.OPENING
        lane = LinkDirection(self._link(connection.client.owner.name, server.owner.name))
        _, time = lane.schedule(self._scheduler.now, 0, self._slow(lane), self._draw())
        self._scheduler.push(time, self._opened, (connection, server))

    def _opened(self, pair: tuple[SimulatedConnection, Port]) -> None:
        connection, server = pair
        client = connection.client
        if connection.state is not ConnectionState.OPENING:
            return
        if self._bound.get(connection.key) is not server or not self._in_reach(client, server):
            self.open(connection)
            return
        connection.state = ConnectionState.UP
        connection.epoch += 1
        connection.server = server
        connection.silent_since = None
        connection.forth = LinkDirection(self._link(client.owner.name, server.owner.name))
        connection.back = LinkDirection(self._link(server.owner.name, client.owner.name))
        connection.route = self._routes.randbytes(16)
        self.greet(connection)
        pending, connection.pending = connection.pending, deque()
        if client.open:
            self._up[connection] = None
            server.peers[connection.route] = connection
            self._record_event(client, "connected", to=server.owner.name, address=connection.address)
            self.deliver_event(client, Connected(connection.address))
        for message in pending:
            self._launch(message)
        if not client.open:
            connection.state = ConnectionState.CLOSED

    def _break(self, connection: SimulatedConnection, notice_at: float) -> None:
        """Break an established connection; its client notices at `notice_at`."""
        self._forget(connection)
        connection.state = ConnectionState.BROKEN
        self._scheduler.push(notice_at, self._noticed, (connection, connection.epoch))

    def _noticed(self, pair: tuple[SimulatedConnection, int]) -> None:
        connection, epoch = pair
        if connection.state is ConnectionState.BROKEN and connection.epoch == epoch:
            connection.epoch += 1
            self._record_event(connection.client, "disconnected", address=connection.address)
            connection.client.lost(connection.address)
            self.deliver_event(connection.client, Disconnected(connection.address))
            self.open(connection)

    def close_connection(self, connection: SimulatedConnection) -> None:
        """End a connection from the client's side; in-flight messages are lost."""
        self._forget(connection)
        connection.state = ConnectionState.CLOSED
        connection.epoch += 1
        self._drop_pending(connection)

    def _forget(self, connection: SimulatedConnection) -> None:
        self._up.pop(connection, None)
        server = connection.server
        if server is not None and server.peers.get(connection.route) is connection:
            del server.peers[connection.route]
        if connection.state is ConnectionState.WAITING:
            with suppress(KeyError, ValueError):
                self._waiting[connection.key].remove(connection)

    def _drop_pending(self, connection: SimulatedConnection) -> None:
        while connection.pending:
            message = connection.pending.popleft()
            self._lose(message, "dropped")

    def close(self, port: Port, linger_s: float) -> None:
        """Close an endpoint. Sent messages have `linger_s` to leave; the sender's arrays are no longer used."""
        now = self._scheduler.now
        for message in [*port.in_flight, *(m for c in port.connections.values() for m in c.pending)]:
            message.freeze()
            port.finish(message.done)
            message.done = None
        port.in_flight.clear()
        port.open = False
        port.shut()
        port.cut_at = now + linger_s
        if self._bound.get(port.key) is port:
            del self._bound[port.key]
        for connection in list(port.peers.values()):
            self._break(connection, self._end_seen_at(connection, port))
        for connection in port.connections.values():
            if linger_s > 0 and connection.pending:
                self._scheduler.push(port.cut_at, self._give_up, connection)
            else:
                self._give_up(connection)

    def _end_seen_at(self, connection: SimulatedConnection, server: Port) -> float:
        """When a client notices that the other end closed: after all messages that still arrive from there."""
        lane = connection.back
        assert lane is not None
        reachable = self._in_reach(connection.client, server)
        delay = self.network.detect_s if reachable else self.network.heartbeat_s
        network = lane.link.network
        last_at = server.cut_at + network.latency_s * (1.0 + network.jitter) * self._slow(lane)
        return max(self._scheduler.now + delay, nextafter(min(lane.last_at, last_at), inf))

    def _give_up(self, connection: SimulatedConnection) -> None:
        """Close a connection whose client is closed; messages that have left may still arrive."""
        if connection.state is not ConnectionState.CLOSED:
            self._forget(connection)
            connection.state = ConnectionState.CLOSED
            self._drop_pending(connection)

    # Messages

    def send(self, message: InFlight) -> None:
        """Send a message, keep it for a connection that is being made, or drop it."""
        via = message.via
        if via.state is ConnectionState.UP:
            self._launch(message)
        elif message.outward and via.state is not ConnectionState.BROKEN:
            via.pending.append(message)
            if len(via.pending) > self.network.queue_messages:
                self._lose(via.pending.popleft(), "dropped")
        else:
            self._lose(message, "dropped")

    def _launch(self, message: InFlight) -> None:
        via = message.via
        server, lane = via.server, via.forth if message.outward else via.back
        assert server is not None and lane is not None
        message.target = server if message.outward else via.client
        message.epoch = via.epoch
        nbytes = len(message.header)
        for view in message.views:
            nbytes += view.nbytes
        slow = self._slow(lane) if self.slow else 1.0
        if lane.link.cards is None:
            message.leaves_at, arrives = lane.schedule(self._scheduler.now, nbytes, slow, self._draw())
            self._carry(message, lane, arrives)
            return
        message.leaves_at = inf
        message.source.in_flight[message] = None
        queue = lane.link.queue
        queue.append(Moving(message, nbytes, slow, self._draw()))
        if len(queue) == 1:
            self._move_chunk(lane.link)

    def _move_chunk(self, link: Link) -> None:
        """Move the next bytes that wait for a link's cards."""
        moving = link.queue[0]
        leaves, arrives, next_at = link.move_chunk(self._scheduler.now)
        if not moving.left:
            link.queue.popleft()
            message = moving.message
            lane = message.via.forth if message.outward else message.via.back
            message.leaves_at = leaves
            if lane is not None and message.epoch == message.via.epoch:
                self._carry(message, lane, lane.after_others(arrives))
            else:
                self._lose(message, "dropped")
        if link.queue:
            self._scheduler.push(next_at, self._move_chunk, link)

    def _carry(self, message: InFlight, lane: LinkDirection, arrives: float) -> None:
        """Have a message that has been sent arrive, late, twice or never, as the network is."""
        draw, scheduler = self._draw, self._scheduler
        if not lane.local:
            network = lane.link.network
            if network.loss and draw() < network.loss:
                self._lose(message, "lost")
                return
            if network.double and draw() < network.double:
                message.copies = 2
                self._note_message(message, "doubled")
                scheduler.push(arrives + draw() * network.reorder_delay_s, self._arrive, message)
            if network.reorder and draw() < network.reorder:
                self._note_message(message, "late")
                arrives += draw() * network.reorder_delay_s
        if message.views or message.done is not None:
            message.source.in_flight[message] = None
        scheduler.push(arrives, self._arrive, message)

    def _arrived(self, message: InFlight) -> None:
        source, target, via = message.source, message.target, message.via
        assert target is not None
        delivery = None
        if not target.open or message.leaves_at > source.cut_at or message.epoch != via.epoch:
            self._note_message(message, "dropped")
        elif self._cuts and self._stopped(source.owner.name, target.owner.name):
            self._note_message(message, "partitioned")
        else:
            frames = [memoryview(bytearray(view)) for view in message.views] if message.views else []
            if self._trace.deliveries:
                self._note_message(message, "delivered")
            delivery = Delivery(via.route if message.outward else via.address, message.header, frames)
        message.copies -= 1
        if not message.copies:
            source.in_flight.pop(message, None)
            if message.done is not None:
                source.finish(message.done)
        if delivery is not None:
            self.deliver_event(target, delivery)

    def _lose(self, message: InFlight, why: str) -> None:
        self._note_message(message, why)
        message.source.in_flight.pop(message, None)
        message.source.finish(message.done)

    def send_nowhere(self, port: Port, header: bytes, views: list[memoryview]) -> None:
        """Record a message to a peer that is no longer connected."""
        nbytes = len(header) + sum(view.nbytes for view in views)
        self._record_event(port, "dropped", to="a peer that is gone", nbytes=nbytes)

    def deliver_event(self, port: Port, event: Event) -> None:
        """Give an endpoint an event, and wake the task that waits for it. Only between tasks."""
        if not port.open:
            return
        port.inbox.append(event)
        task = port.receiver
        if task is not None and task.waiting:
            task.waiting = False
            self._scheduler.resume(task)

    # Silence

    def add_partition(self, cut: Cut) -> None:
        """Begin a partition."""
        self._cuts.append(cut)
        self.look_again()

    def end_partition(self, cut: Cut) -> bool:
        """End a partition; False if it has ended already."""
        if cut not in self._cuts:
            return False
        self._cuts.remove(cut)
        self.look_again()
        return True

    def mend_all(self) -> None:
        """End all partitions."""
        self._cuts.clear()
        self.look_again()

    def look_again(self) -> None:
        """React to changed reachability: watch processes that fell silent, connect those that came back."""
        now = self._scheduler.now
        for connection in self._up:
            assert connection.server is not None
            if self._in_reach(connection.client, connection.server):
                connection.silent_since = None
            elif connection.silent_since is None:
                connection.silent_since = now
                due = now + self.network.heartbeat_s
                self._scheduler.push(due, self._check_silence, (connection, connection.epoch, now))
        waiting, self._waiting = self._waiting, {}
        for connections in waiting.values():
            for connection in connections:
                self.open(connection)

    def _check_silence(self, what: tuple[SimulatedConnection, int, float]) -> None:
        connection, epoch, since = what
        if connection.state is ConnectionState.UP and connection.epoch == epoch and connection.silent_since == since:
            self._break(connection, self._scheduler.now)

    def _in_reach(self, one: Port, other: Port) -> bool:
        """Whether both ends hear each other. A stopped process does not answer heartbeats."""
        if one.owner.paused or other.owner.paused:
            return one.owner is other.owner
        if not self._cuts:
            return True
        a, b = one.owner.name, other.owner.name
        return not (self._stopped(a, b) or self._stopped(b, a))

    def _stopped(self, source: str, target: str) -> bool:
        return source != target and any(cut.stops(source, target) for cut in self._cuts)

    # Links and trace

    def _link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            cards = None if self._rack is None else self._rack.cards(source, target)
            link = self._links[source, target] = Link(self.network, source, target, cards)
        return link

    def set_slow(self, name: str, factor: float) -> None:
        """Multiply all delays to and from a process from now on; 1 is normal."""
        if factor == 1.0:
            self.slow.pop(name, None)
        else:
            self.slow[name] = factor

    def _slow(self, lane: LinkDirection) -> float:
        return self.slow.get(lane.link.source, 1.0) * self.slow.get(lane.link.target, 1.0)

    def _record_event(self, port: Port, what: str, **detail: Any) -> None:
        self._trace.add(self._scheduler.now, port.owner.name, what, detail)

    def _note_message(self, message: InFlight, what: str) -> None:
        target = message.target
        to = message.via.address if target is None else target.owner.name
        nbytes = len(message.header) + sum(view.nbytes for view in message.views)
        self._record_event(message.source, what, to=to, nbytes=nbytes)


def _key(owner: TaskGroup, address: Address) -> str:
    """The key of an address: inproc names belong to one process, localhost is 127.0.0.1."""
    if address.scheme == "inproc":
        return f"{address} in {owner.name}"
    if address.scheme == "tcp":
        return f"tcp {'127.0.0.1' if address.host == 'localhost' else address.host} {address.port}"
    return str(address)
