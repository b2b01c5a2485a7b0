"""Tracks which `inproc://` names are bound, because libzmq does not report when such a peer comes or goes.

When an `inproc://` name is bound again, libzmq does not reconnect a socket that was connected to it, and raises no
monitor events. So the endpoints of one context notify each other.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Watcher(Protocol):
    """An object that watches a name. Any thread may call `tell`, which must not block."""

    def tell(self, url: str, bound: bool) -> None: ...


class Names:
    """The bound names of one context and their watchers. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bound: set[str] = set()
        self._watchers: dict[str, list[Watcher]] = {}

    def opened(self, url: str) -> None:
        """Note that the name is bound now."""
        with self._lock:
            self._bound.add(url)
            for watcher in self._watchers.get(url, ()):
                watcher.tell(url, True)

    def shut(self, url: str) -> None:
        """Note that the name is no longer served."""
        with self._lock:
            self._bound.discard(url)
            for watcher in self._watchers.get(url, ()):
                watcher.tell(url, False)

    def watch(self, url: str, watcher: Watcher) -> None:
        """Tell `watcher` about each change, and at once if the name is bound already."""
        with self._lock:
            self._watchers.setdefault(url, []).append(watcher)
            if url in self._bound:
                watcher.tell(url, True)

    def forget(self, url: str, watcher: Watcher) -> None:
        """Stop telling `watcher`."""
        with self._lock:
            left = [other for other in self._watchers.get(url, ()) if other is not watcher]
            if left:
                self._watchers[url] = left
            else:
                self._watchers.pop(url, None)
