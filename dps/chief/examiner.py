"""Answers `dps doctor --chief`: what runs here, and how long bytes take. Lives on the chief's node."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import numpy as np

from dps.actors.actor import Actor
from dps.actors.ref import Sender
from dps.transport.message import Message
from dps.transport.probing import ASKED, proof
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
    """Asks what this node is. `nbytes`: how many bytes the answer should bring. `memory`: of the asker, if it
    has any. `arrays` may be of any size, and are not looked at."""

    nbytes: int
    memory: list[Any]
    arrays: tuple[Array, ...] = ()


class Examined(Message, kind=111, roles=ANSWER):
    """The version of dps, the machine's name, the time there in seconds since 1970, and what the asker's memory
    holds; b"" if it cannot be read."""

    version: str
    host: str
    wall_s: float
    proof: bytes
    arrays: tuple[Array, ...] = ()


class Examiner(Actor):
    """Answers at once and remembers nothing."""

    def on_Examine(self, message: Examine, sender: Sender) -> None:
        runtime = self.node.runtime
        found = proof(runtime, message.memory, ASKED, []) if message.memory else b""
        arrays = (np.zeros(min(message.nbytes, LONGEST_NBYTES), np.uint8),) if message.nbytes > 0 else ()
        self.node.answer(sender, Examined(version(), runtime.place.host, runtime.wall(), found, arrays))
