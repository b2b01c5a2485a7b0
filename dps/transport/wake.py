"""A file descriptor that any thread can make readable to end another thread's wait."""

from __future__ import annotations

import os
import socket
import sys
import threading


class Wake:
    """An eventfd where the system has one (Linux), else a pair of sockets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pair: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._write_fd = self.fd
        else:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self.fd, self._write_fd = self._pair[0].fileno(), self._pair[1].fileno()

    def set(self) -> None:
        """Make the descriptor readable. Any thread may call it. Never blocks; does nothing once it is closed."""
        with self._lock:  # a closed descriptor's number may already belong to another file
            if self._write_fd < 0:
                return
            try:
                os.write(self._write_fd, (1).to_bytes(8, sys.byteorder))
            except BlockingIOError:
                pass

    def clear(self) -> None:
        """Make it unreadable again. Only the owner may call it."""
        try:
            while os.read(self.fd, 4096) and self._pair is not None:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        with self._lock:
            self._write_fd = -1
        if self._pair is None:
            os.close(self.fd)
            return
        for end in self._pair:
            end.close()
