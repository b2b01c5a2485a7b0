"""One ps as a session knows it while it takes part in a run epoch: its address, its shard, the memory it shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.client.lanes import Lane
from dps.variables.plan import ShardLayout


class Peer(NamedTuple):
    """What a request to one ps is made with. Made anew when the session joins."""

    caller: Caller
    ps: int
    ref: Ref
    layout: ShardLayout
    lane: Lane
    abort: Callable[[], None]
    """Called when the ps says that epoch or incarnation has ended."""
