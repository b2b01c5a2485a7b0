"""A real process that is stopped for longer than heartbeats last: its peers write to it again when it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.messages.runs import AskStats, Stats
from dps.messages.sessions import Probe, Probed
from dps.transport.runtime import RealRuntime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has datagram sockets without a file")

SILENCE_S = 0.5

NODE = f"""
import sys
from dps.actors.actor import Actor
from dps.actors.node import Node
from dps.messages.sessions import Probed
from dps.messages.runs import Stats
from dps.transport.runtime import RealRuntime

class Pairs(Actor):
    def on_Probe(self, message, sender):
        self.node.answer(sender, Probed([], b"", True, self.node.tickets.pair(sender.route, message.direct)))

    def on_AskStats(self, message, sender):
        self.node.answer(sender, Stats({{}}))

node = Node(RealRuntime("node", silence_s={SILENCE_S}), "127.0.0.1:0", "node")
node.host("ps", Pairs())
node.start()
print(node.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node() -> Iterator[tuple[subprocess.Popen[str], Ref]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", NODE], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Ref(process.stdout.readline().strip(), "ps")
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def test_a_node_that_was_stopped_and_its_client_hear_each_other_again_by_datagrams(
    node: tuple[subprocess.Popen[str], Ref],
) -> None:
    process, ref = node
    runtime = RealRuntime("test", silence_s=SILENCE_S)
    caller = Caller(runtime, "worker:0")
    caller.connect(ref.address, runtime.secret())
    try:
        probed = caller.ask(ref, Probe([], b"", caller.direct), 20.0)
        assert isinstance(probed, Probed) and probed.direct
        caller.pair(ref.address, probed.direct)
        assert isinstance(caller.ask(ref, AskStats(), 5.0), Stats)  # the node knows now that it may answer that way
        direct = caller._endpoint._direct  # type: ignore[attr-defined]
        process.send_signal(signal.SIGSTOP)
        while ref.address not in caller.away:
            caller.turn(5.0)
        assert ref.address not in direct.peers.written
        process.send_signal(signal.SIGCONT)
        assert isinstance(caller.ask(ref, AskStats(), 5.0), Stats)
        while ref.address not in direct.peers.written:  # the first answers may have come through ZeroMQ
            assert isinstance(caller.ask(ref, AskStats(), 5.0), Stats)
    finally:
        caller.close()
