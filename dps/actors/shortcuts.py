"""Short ways from a message that a few integers describe to its handler.

A session sends a ps thousands of messages that differ only in their integers. Whether it may send them depends on the
connection and on the head of their plain headers (`dps.transport.wire`): who it is, which incarnation it claims, which
message it is, and to which actor. So a node checks the first message with a head, and remembers what it found. It
forgets everything when anything changes about who is admitted (`Tickets`, `Authorization`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dps.actors.authorization import Peer
from dps.actors.ref import Sender
from dps.transport.endpoint import Route
from dps.transport.wire import Head

Integers = tuple[int, ...]
"""The request number of a message, and the integers that describe it."""
MOST = 4096
"""The most heads that are remembered. When there are more, all are forgotten."""
made_sender = partial(tuple.__new__, Sender)
"""Makes a sender of a tuple of all fields, in less time than its constructor."""


class Shortcut(NamedTuple):
    """What a node found about the messages with one head on one connection: its sender may send them."""

    nbytes: int
    """Bytes of the whole header."""
    at: int
    """Where the integers begin."""
    unpack: Callable[[bytes, int], Integers]
    handler: Callable[[Sender, Integers], None]
    who: tuple[str, int, Peer]
    """Name, incarnation and peer of the sender."""
    asker: str
    user: str
    """As `Node.asker` and `Node.user`."""
    about: tuple[str, str]
    """The names of the actor and of the message's class, for errors."""


class Shortcuts(dict[tuple[Route, bytes], Shortcut]):
    """The shortcuts of one node, by connection and head."""

    def remember(
        self, route: Route, head: bytes, read: Head, handler: Callable[[Sender, Integers], None], sender: Sender,
        asked: tuple[str, str],
    ) -> None:  # fmt: skip
        """Note that messages with this head pass all checks on this connection. `asked`: the asker and its user."""
        if len(self) >= MOST:
            self.clear()
        about = read.actor, read.form.cls.__name__
        self[route, head] = Shortcut(read.nbytes, len(head), read.unpack, handler, sender[2:], *asked, about)
