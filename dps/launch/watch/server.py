"""Serves the page of a run on this machine's own address: it answers GET alone, and nothing without a secret."""

from __future__ import annotations

import errno
import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dps.errors import ConfigError
from dps.launch.watch import page
from dps.launch.watch.access import Access, is_own_host
from dps.launch.watch.feed import PageFeed
from dps.launch.watch.metrics import TYPE, RunMetrics

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64
"""How many are open at one time; what comes then is closed at once. A page has one."""
SLOW_S = 10.0
"""How long a request may take to arrive, and a page to take what it is sent."""
SILENT_S = 5.0
"""After so long without a reading a page is sent a comment, by which this side finds out that it is gone."""
HTML, PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY", "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin", "Connection": "close",
}  # fmt: skip
"""What every answer says."""
BARE = "default-src 'none'; frame-ancestors 'none'"
"""The content security policy of answers that are no pages."""
REFUSED = (
    "This needs the address that dps watch has printed, which is valid once. Enter in its terminal prints another.\n"
)


class WatchServer(ThreadingHTTPServer):
    """The server of one `dps watch`; a thread for each connection. `port` 0: a free one."""

    daemon_threads, block_on_close = True, False

    def __init__(self, port: int, feed: PageFeed, metrics: RunMetrics, access: Access, name: str) -> None:
        self.feed, self.metrics, self.access, self.name = feed, metrics, access, name
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), PageRequest)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else "is not for this account"
            raise ConfigError(
                f"port {port} of {HOST} {why}; leave --port out and dps watch takes a free one, or name another"
            ) from None
        self.port = int(self.server_address[1])

    def server_bind(self) -> None:
        """As of TCPServer: HTTPServer asks the resolver for this machine's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each connection."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Called in a connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error; anything else is told on stderr, by the base class."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def make_url(self) -> str:
        """A new address of the page, for one browser."""
        return f"http://{HOST}:{self.port}/?token={self.access.make_token()}"

    @contextmanager
    def serving(self) -> Iterator[WatchServer]:
        """Serve in a thread while the block runs."""
        threading.Thread(target=self.serve_forever, args=(0.1,), name="dps watch serves", daemon=True).start()
        try:
            yield self
        finally:
            self.feed.close()
            self.shutdown()
            self.server_close()


class PageRequest(BaseHTTPRequestHandler):
    """One request."""

    server: WatchServer
    server_version, sys_version = "dps", ""
    protocol_version = "HTTP/1.1"
    timeout = SLOW_S

    def do_GET(self) -> None:
        """Called for a request by GET."""
        self.close_connection = True
        access, asked = self.server.access, urlsplit(self.path)
        if not is_own_host(self.headers.get_all("Host", [])):
            self._send(421, "This server is for this machine alone, by the names 127.0.0.1 and localhost.\n", PLAIN)
        elif asked.path == "/metrics":
            self._answer_metrics()
        elif asked.path == "/" and (given := parse_qs(asked.query).get("token")):
            if access.use_token(given[0]):
                self._send(200, page.forward_page(access.path), HTML, {"Set-Cookie": access.set_cookie()})
            else:
                self._send(403, REFUSED, PLAIN)
        elif access.may_see(asked.path, self.headers.get_all("Cookie", []), self.headers.get("Sec-Fetch-Site")):
            self._answer_page(asked.path[len(access.path) :])
        else:
            self._send(403, REFUSED, PLAIN)

    def _answer_metrics(self) -> None:
        if self.server.access.may_measure(self.headers.get_all("Authorization", [])):
            self._send(200, self.server.metrics.text(), TYPE)
        else:
            text = "This needs the token of the file that dps watch was given as --metrics-token-file.\n"
            self._send(401, text, PLAIN, {"WWW-Authenticate": 'Bearer realm="dps watch"'})

    def _answer_page(self, part: str) -> None:
        policy = {"Content-Security-Policy": page.policy()}
        if part == "":
            self._send(200, page.live_page(), HTML, policy)
        elif part == "events":
            self._stream()
        elif part == "save":
            name = {"Content-Disposition": f'attachment; filename="{self.server.name}.html"'}
            self._send(200, page.saved_page(self.server.feed.whole()), HTML, policy | name)
        else:
            self._send(404, "The page of dps watch has no such part.\n", PLAIN)

    def _stream(self) -> None:
        """Send the run's figures as server-sent events until the page or the watching goes."""
        self._send_head(200, {"Content-Type": "text/event-stream; charset=utf-8"})
        for news in self.server.feed.updates(SILENT_S):
            text = ":\n\n" if news is None else f"data: {json.dumps(news, allow_nan=False, separators=(',', ':'))}\n\n"
            self.wfile.write(text.encode())

    def _send(self, code: int, text: str, kind: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self._send_head(code, {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _send_head(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in (HEADERS | {"Content-Security-Policy": BARE} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class for what is no request, and for methods that are not here."""
        self.close_connection = True
        if code == 501:
            self._send(405, "", PLAIN, {"Allow": "GET"})  # no text: to HEAD it would not belong
        else:
            self._send(code, "", PLAIN)

    def log_message(self, format: str, *args: Any) -> None:
        """Addresses have tokens in them; nothing is logged."""
