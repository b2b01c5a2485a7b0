"""Bytes of an encrypted connection that somebody recorded on the network are of no use to him."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from dps.transport.endpoint import Delivery
from dps.transport.keys import files as key_files
from dps.transport.keys.keyring import credentials
from dps.transport.runtime import RealRuntime

WAIT_S = 5.0


class Wire:
    """Stands between a client and a node, and records what the client sends."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded = b""
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        host, _, port = self._node.rpartition(":")
        far = socket.create_connection((host, int(port)))
        self._ends = [near, far]
        threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()
        self._pass(near, far, True)

    def _pass(self, source: socket.socket, to: socket.socket, records: bool) -> None:
        try:
            while data := source.recv(65536):
                self.recorded += data if records else b""
                to.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()


def test_what_was_recorded_and_is_sent_again_reaches_nobody(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    key_files.new(keys)
    runtime = RealRuntime()
    node = runtime.endpoint("127.0.0.1:0", credentials(keys, "chief"))
    wire, client = Wire(node.address), runtime.endpoint(None, credentials(keys, "worker"))
    try:
        client.send(wire.address, b"a message of which nobody may make two", [b"frame"])
        deadline = runtime.now() + WAIT_S
        while not isinstance(node.receive(0.02), Delivery):
            client.receive(0.02)
            assert runtime.now() < deadline
        recorded = wire.recorded
        assert len(recorded) > 300 and b"message" not in recorded and b"frame" not in recorded
        client.close(0.0)
        host, _, port = node.address.rpartition(":")
        for cut in (len(recorded), len(recorded) - 40):  # all of it, and all but the last frame
            with socket.create_connection((host, int(port)), WAIT_S) as raw:
                raw.sendall(recorded[:cut])
                raw.settimeout(0.5)
                try:
                    while raw.recv(4096):
                        pass
                except OSError:  # it was reset, or waits for what does not come
                    pass
            assert node.receive(0.05) is None
    finally:
        wire.close()
        client.close(0.0)
        node.close(0.0)
        runtime._at_exit()
