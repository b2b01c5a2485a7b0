"""The network model: properties of links, and when a message that is sent now arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dps.transport.sim.connection import InFlight

CHUNK_NBYTES = 1 << 16
"""How many bytes of one link pass a card before those of another one get their turn: of a message half to one and a
half times as many, because connections of TCP share a link unevenly."""


@dataclass(frozen=True, slots=True)
class Network:
    """The properties of the links between processes. Messages within a process are fast and never lost.

    A link leads from one process to another. A message leaves when its link has sent all earlier messages, and arrives
    after the earlier messages on its connection.

    Args:
        latency_s: The least time from sending to arrival, in seconds.
        jitter: The time is longer by up to this share of it.
        bytes_per_s: The bandwidth of a link.
        loss: The probability that a message is lost.
        double: The probability that a message arrives twice.
        reorder: The probability that a message arrives late and out of order.
        reorder_delay_s: The longest delay of such a message.
        detect_s: Seconds until peers notice that a process has ended.
        heartbeat_s: Seconds of silence after which a peer is given up.
        queue_messages: The most messages that wait for a connection; beyond it the oldest are dropped.
        links: Other properties for single links, by (from, to); "*" is any task. Names take precedence over "*".

    Raises:
        ValueError: A number out of range.

    Example:
        ```pycon
        >>> import dataclasses
        >>> fast = dps.sim.Network(latency_s=20e-6)
        >>> slow = dataclasses.replace(fast, latency_s=0.1)
        >>> network = dataclasses.replace(fast, links={("worker:0", "*"): slow})
        >>> network.between("worker:0", "ps:1").latency_s
        0.1
        ```
    """

    latency_s: float = 100e-6
    jitter: float = 0.5
    bytes_per_s: float = 1e9
    loss: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    reorder_delay_s: float = 0.05
    detect_s: float = 0.02
    heartbeat_s: float = 5.0
    queue_messages: int = 1024
    links: Mapping[tuple[str, str], Network] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("loss", "double", "reorder"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"Network({name}={getattr(self, name)}): wanted a probability, 0 to 1")
        for name in ("latency_s", "jitter", "reorder_delay_s", "detect_s", "heartbeat_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"Network({name}={getattr(self, name)}): wanted 0 or more")
        if not self.bytes_per_s > 0.0:
            raise ValueError(f"Network(bytes_per_s={self.bytes_per_s}): wanted more than 0")

    def between(self, source: str, target: str) -> Network:
        """The properties of one link.

        Args:
            source: The task that sends.
            target: The task that receives.

        Returns:
            The matching entry of `links`, or this network.
        """
        if self.links:
            for key in ((source, target), (source, "*"), ("*", target)):
                if key in self.links:
                    return self.links[key]
        return self


def names_of_links(network: Network) -> list[tuple[str, object]]:
    """The tasks that single links name, each with its link."""
    return [(task, f"Network(links={link})") for link in network.links for task in link if task != "*"]


class Card:
    """One direction of a machine's network card, and when it will have sent all waiting messages."""

    __slots__ = ("bytes_per_s", "free_at")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at = 0.0

    def moved_at(self, first_byte_at: float, last_byte_at: float, nbytes: int) -> float:
        """When a message has passed the card; its bytes reach the queue from `first_byte_at` to `last_byte_at`."""
        self.free_at = max(last_byte_at, max(first_byte_at, self.free_at) + nbytes / self.bytes_per_s)
        return self.free_at


class Link:
    """The link from one process to another: its properties, and when it will have sent all waiting messages. With
    cards: the messages that wait, of which the first one is moving."""

    __slots__ = ("cards", "free_at", "network", "queue", "source", "target")

    def __init__(self, network: Network, source: str, target: str, cards: tuple[Card, Card] | None = None) -> None:
        """`cards`: outward of the source's machine and inward of the target's; other links share them."""
        self.network = network.between(source, target)
        self.source = source
        self.target = target
        self.cards = cards
        self.free_at = 0.0
        self.queue: deque[Moving] = deque()

    def move_chunk(self, now: float) -> tuple[float, float, float]:
        """Move the next bytes of the first message. When they leave, when they arrive, and when the next ones may
        follow: links share a card by turns, and none has more than one chunk on its way."""
        assert self.cards is not None
        (out, into), network, message = self.cards, self.network, self.queue[0]
        nbytes = min(message.left, int(CHUNK_NBYTES * (0.5 + message.draw)))
        message.left -= nbytes
        leaves = out.moved_at(now, now + nbytes / network.bytes_per_s * message.slow, nbytes)
        delay_s = network.latency_s * (1.0 + network.jitter * message.draw) * message.slow
        way_s = nbytes / min(network.bytes_per_s, out.bytes_per_s)  # from the first byte to the last
        arrives = into.moved_at(leaves + delay_s - way_s, leaves + delay_s, nbytes)
        return leaves, arrives, max(leaves, arrives - delay_s)


class Moving:
    """A message that passes network cards. `left`: its bytes that have not left; `draw`: from [0, 1)."""

    __slots__ = ("draw", "left", "message", "slow")

    def __init__(self, message: InFlight, left: int, slow: float, draw: float) -> None:
        self.message, self.left, self.slow, self.draw = message, left, slow, draw


class LinkDirection:
    """One direction of one connection, on which messages stay in order."""

    __slots__ = ("last_at", "link", "local")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.local = link.source == link.target
        self.last_at = 0.0

    def schedule(self, now: float, nbytes: int, slow: float, draw: float) -> tuple[float, float]:
        """When a message of `nbytes` leaves and when it arrives, on a link without cards; `draw` is a random number
        from [0, 1)."""
        if self.local:
            leaves = now
            arrives = now + 1e-6 * (1.0 + draw)
        else:
            link = self.link
            network = link.network
            leaves = max(now, link.free_at) + nbytes / network.bytes_per_s * slow
            link.free_at = leaves
            arrives = leaves + network.latency_s * (1.0 + network.jitter * draw) * slow
        return leaves, self.after_others(arrives)

    def after_others(self, arrives: float) -> float:
        """When a message arrives, which is after all earlier ones."""
        if arrives <= self.last_at:
            arrives = nextafter(self.last_at, inf)
        self.last_at = arrives
        return arrives
