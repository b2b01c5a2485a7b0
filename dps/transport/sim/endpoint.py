"""The simulated endpoint: an `Endpoint` for simulated processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dps.errors import Unavailable
from dps.transport.endpoint import Buffer, Delivery, Event, Route
from dps.transport.sim.connection import InFlight, Port
from dps.transport.sim.datagrams import Datagrams, SimulatedSockets
from dps.transport.sim.fabric import Fabric
from dps.transport.sim.machines import MessageCosts
from dps.transport.sim.scheduler import SHORTEST_S, Scheduler, SimulationError, TaskGroup
from dps.transport.sockets.connections import Connections


class SimEndpoint(Port):
    """As `dps.transport.endpoint.Endpoint`. Sending takes no virtual time, except for the costs in `work`.

    Every sent frame is read when its message arrives, however small it is, so that the receiver sees an array that was
    changed too early. Messages of a killed process are dropped, and its calls that could block raise GreenletExit.
    """

    exposed = keyed = False

    def __init__(
        self, fabric: Fabric, scheduler: Scheduler, owner: TaskGroup, bind: str | None, sockets: SimulatedSockets,
        work: MessageCosts | None = None,
    ) -> None:  # fmt: skip
        super().__init__(owner, scheduler.rouse)
        self._fabric = fabric
        self._scheduler = scheduler
        self._work = work
        self._woken = False
        self._datagrams = Datagrams(sockets, self)
        self.accepted = Connections()
        if bind is not None:
            fabric.bind(self, bind)

    @property
    def direct(self) -> bytes:
        """As Endpoint.direct."""
        return self._datagrams.name

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """As Endpoint.pair."""
        return self._datagrams.pair(route, name, hears)

    def paired(self, name: bytes) -> Route | None:
        """As Endpoint.paired."""
        return self._datagrams.peers.route(name)

    def introduce(self, address: str, header: bytes) -> None:
        """As Endpoint.introduce. It arrives at once, in any network: a connection carries it before all else."""
        self.greetings[address] = header
        connection = self.connections.get(address)
        if connection is not None and self.owner.alive:
            self._fabric.greet_soon(connection)

    def lost(self, address: str) -> None:
        """As Port.lost."""
        self._datagrams.peers.disconnected(address)

    def shut(self) -> None:
        """As Port.shut."""
        self._datagrams.close()

    def expect(self, address: str, user: str) -> None:
        """Does nothing: there are no keys."""

    def connect(self, address: str) -> None:
        """As Endpoint.connect. `Connected` comes one link delay after the peer exists and can be reached."""
        if self._may_act("connect") and address not in self.connections:
            self._fabric.connect(self, address)

    def disconnect(self, address: str) -> None:
        """As Endpoint.disconnect; in-flight messages in both directions are lost, too."""
        self.lost(address)
        connection = self.connections.get(address)
        if connection is not None and self.owner.alive:
            self._fabric.close_connection(connection)
            self.connections = {text: other for text, other in self.connections.items() if other is not connection}

    def send(
        self, route: Route, header: bytes, frames: Sequence[Buffer] = (), done: Callable[[], None] | None = None
    ) -> None:
        """As Endpoint.send. A message to a peer that is gone is dropped.

        Raises ValueError for an empty header, a frame that is not contiguous, and a route that is not this endpoint's.
        """
        if not self._may_act("send"):
            return
        if self.finished:
            self._call_done()
        if not header:
            raise ValueError("a message needs a header of at least one byte, got none")
        views = [_view(frame) for frame in frames] if frames else []
        if self._work is not None and not self._scheduler.between_tasks:
            self._work.sent(_nbytes(header, views))
            if not self.open:  # another task closed it meanwhile
                return
        if self._datagrams.send(route, header, views):
            if done is not None:
                done()
            return
        if isinstance(route, str):
            connection = self.connections.get(route) or self._fabric.connect(self, route)
            self._fabric.send(InFlight(connection, True, header, views, done))
            return
        peer = self.peers.get(route)
        if peer is not None:
            self._fabric.send(InFlight(peer, False, header, views, done))
        elif not self.address:
            raise ValueError(f"route {route!r} is not from this endpoint, which is not bound; answer by address")
        else:
            self._fabric.send_nowhere(self, header, views)
            self.finish(done)

    def receive(self, timeout_s: float) -> Event | None:
        """As Endpoint.receive, in virtual time. With timeout 0, tasks that are due now run first."""
        if not self._may_act("receive"):
            self._refuse()
        if self.finished:
            self._call_done()
        if (event := self._taken()) is not None:
            return event
        task = self._scheduler.task()
        if self.receiver is not None:
            raise SimulationError(
                f"tasks {self.receiver.name!r} and {task.name!r} of {self.owner.name} receive from one endpoint at a "
                "time; an endpoint belongs to one task"
            )
        if not self._woken:
            if timeout_s <= 0:
                self._scheduler.pass_time(task, 0.0)
            else:
                self._wait(self._scheduler.now + max(timeout_s, SHORTEST_S))
        if self.finished:
            self._call_done()
        if (event := self._taken()) is not None:
            return event
        self._woken = False
        return None

    def _taken(self) -> Event | None:
        """The next event from a connection, or the next datagram, in any relative order."""
        event: Event | None = None
        if self._datagrams.ready and not (self.inbox and self._scheduler.draw() < 0.5):
            event = self._datagrams.receive()
        if event is None and self.inbox:
            event = self.inbox.popleft()
        if self._work is not None and isinstance(event, Delivery):
            self._work.received(_nbytes(event.header, event.frames))
        return event

    def _wait(self, deadline: float) -> None:
        scheduler = self._scheduler
        task = self.receiver = scheduler.task()
        try:
            while not (self.inbox or self._datagrams.ready or self._woken) and self.open and scheduler.now < deadline:
                scheduler.block(task, deadline)
                if self.finished:
                    self._call_done()
        finally:
            self.receiver = None

    def wake(self) -> None:
        """As Endpoint.wake."""
        if self.owner.alive:
            self._woken = True
            if self.receiver is not None:
                self._scheduler.rouse(self.receiver)

    def close(self, linger_s: float = 0.5) -> None:
        """As Endpoint.close; never blocks. Connected peers notice it shortly afterwards."""
        if self.open and self.owner.alive:
            self._fabric.close(self, linger_s)
            if self.receiver is not None:
                self._scheduler.rouse(self.receiver)
            self._call_done()

    def _call_done(self) -> None:
        while self.finished:
            self.finished.popleft()()

    def _may_act(self, what: str) -> bool:
        """Whether the process is alive. Raises Unavailable if the endpoint is closed."""
        if not self.owner.alive:
            return False
        if not self.open:
            raise Unavailable(
                f"{self.owner.name} cannot {what}: its endpoint {self.address or '(not bound)'} is closed"
            )
        return True

    def _refuse(self) -> None:
        self._scheduler.task()
        self.owner.check()


def _nbytes(header: bytes, views: Sequence[memoryview]) -> int:
    return len(header) + sum(view.nbytes for view in views)


def _view(frame: Buffer) -> memoryview:
    view = memoryview(frame)
    if not view.c_contiguous:
        raise ValueError(
            f"a frame of shape {view.shape} and strides {view.strides} is not C-contiguous; send a contiguous copy"
        )
    return view
