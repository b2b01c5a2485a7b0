"""Answers `dps doctor --chief`: what runs here, and how long bytes take. Lives on the chief's node."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import numpy as np

from dps.actors.actor import Actor
from dps.actors.ref import Sender
from dps.errors import Unavailable
from dps.transport.message import Message
from dps.transport.probing import starts_with
from dps.transport.roles import ALL, ANSWER
from dps.transport.wire import Array

EXAMINER = "examiner"
LONGEST_NBYTES = 1 << 20
"""The most bytes that one answer brings."""


@functools.cache
def version() -> str:
    """The version of dps that is installed here."""
    return importlib.metadata.version("dps")


class Examine(Message, kind=110, roles=ALL):
    """Asks what this node is. `nbytes`: how many bytes the answer should bring. `memory` and `token`: memory of the
    asker, if it has any, and what it holds. `arrays` may be of any size, and are not looked at."""

    nbytes: int
    memory: list[Any]
    token: bytes
    arrays: tuple[Array, ...] = ()


class Examined(Message, kind=111, roles=ANSWER):
    """The version of dps, the machine's name, the time there in seconds since 1970, and whether the asker's memory can
    be read."""

    version: str
    host: str
    wall_s: float
    shared: bool
    arrays: tuple[Array, ...] = ()


class Examiner(Actor):
    """Answers at once and remembers nothing."""

    def on_Examine(self, message: Examine, sender: Sender) -> None:
        runtime, shared = self.node.runtime, False
        if message.memory:
            try:
                shared = starts_with(runtime, message.memory, message.token)
            except Unavailable:
                pass
        arrays = (np.zeros(min(message.nbytes, LONGEST_NBYTES), np.uint8),) if message.nbytes > 0 else ()
        self.node.answer(sender, Examined(version(), runtime.place.host, runtime.wall(), shared, arrays))
