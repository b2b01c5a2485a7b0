"""Tells libzmq which keys may connect (ZAP, ZeroMQ RFC 27), and watches the folders that hold them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

import zmq
from zmq.utils import z85

from dps.process.telemetry import log
from dps.transport.keys.keyring import AcceptedKeys, Credentials, KeyFolder

LOOK_S = 1.0
"""How often the folders are looked at. A key that is not known makes it look at once."""
TOLD = 1000
"""The most peers whose refusal is logged."""


class Zap:
    """The handler of one context, on a thread of its own. The owner of a key (`AcceptedKeys.user`) becomes the User-Id
    of every frame."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], changed: Callable[[KeyFolder], None]) -> None:
        """`changed` is called on this thread for a folder whose keys are others now. Make it before any socket that
        has keys; it ends with the context."""
        self._changed = changed
        self._accepted: WeakValueDictionary[bytes, AcceptedKeys] = WeakValueDictionary()
        """By domain."""
        self._versions: dict[KeyFolder, int] = {}
        """The version of each folder that was told last: others in this process read the folders again, too."""
        self._told: set[tuple[str, bytes, str]] = set()
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        threading.Thread(target=self._run, name="dps checks keys", daemon=True).start()

    def serve(self, keys: Credentials) -> None:
        """Watch a folder of keys, and let in whom an endpoint with these keys accepts. Any thread may call."""
        self._versions.setdefault(keys.folder, keys.folder.version)
        self._accepted[keys.accepted.domain] = keys.accepted

    def _run(self) -> None:
        looked_at = time.monotonic()
        while True:
            try:
                if self._socket.poll(round(1000 * LOOK_S)):
                    self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
            except zmq.ZMQError:  # the context ends
                self._socket.close(0)
                return
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                for folder in list(self._versions):
                    self._check_folder(folder)

    def _check_folder(self, folder: KeyFolder) -> None:
        folder.changed()
        if folder.version != self._versions[folder]:
            self._versions[folder] = folder.version
            log.warning("keys of %s are gone: connections that use them are made anew", folder.path)
            self._changed(folder)

    def _answer(self, asked: list[bytes]) -> list[bytes]:
        """Version, request, status, text, user and metadata, for a request of: version, request, domain, address,
        routing id, mechanism, public key."""
        version, request, domain, address, _, mechanism, *credentials = asked
        user, accepted = "", self._accepted.get(domain)
        if accepted is not None and mechanism == b"CURVE":
            key = z85.encode(credentials[0])
            user = accepted.user(key)
            if not user:
                self._check_folder(accepted.folder)
                user = accepted.user(key)
            if not user:
                self._log_refused(address.decode(errors="replace"), key, accepted.problem(key))
        status = (b"200", b"OK") if user else (b"400", b"unknown key")
        return [version, request, *status, user.encode(), b""]

    def _log_refused(self, address: str, key: bytes, problem: str) -> None:
        """Log why a peer is refused, once. The peer itself is told the same in each case."""
        if (address, key, problem) not in self._told and len(self._told) < TOLD:
            self._told.add((address, key, problem))
            log.warning("refused a connection from %s: %s", address or "this machine", problem)
