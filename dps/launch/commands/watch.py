"""`dps watch`: reads a run again and again, and serves its page and its figures until Ctrl-C."""

from __future__ import annotations

import os
import select
import sys
from contextlib import closing

from dps.launch.runs.reports import RunReader
from dps.launch.runs.view import read_run
from dps.launch.supervision.output import tell_if_slow
from dps.launch.watch.access import Access, read_metrics_token
from dps.launch.watch.feed import PageFeed
from dps.launch.watch.metrics import RunMetrics
from dps.launch.watch.server import HOST, WatchServer
from dps.transport.clock import now, pause, wall

READ_S, ANSWER_S = 1.0, 2.0
"""How often the run is read, and how long each answer of its chief and ps may take."""


def watch_run(path: str, port: int, metrics_token_file: str | None) -> int:
    """Show the run in a folder as a page until Ctrl-C; returns the exit code. The page stays when the run is over."""
    token = read_metrics_token(metrics_token_file) if metrics_token_file else ""
    feed, metrics = PageFeed(path), RunMetrics()
    run = os.path.basename(path)
    try:
        with (
            WatchServer(port, feed, metrics, Access(token), f"dps-run-{run}").serving() as server,
            closing(RunReader("dps watch", ANSWER_S)) as reader,
        ):
            with tell_if_slow(f"asks the chief of run {run} and its ps"):
                is_over = _read(path, reader, feed, metrics)
            _print_addresses(server, run, metrics_token_file)
            while True:
                next_at = now() + READ_S
                is_over = is_over or _read(path, reader, feed, metrics)
                while (left_s := next_at - now()) > 0:
                    if _entered(left_s):
                        print(f"another address, for one browser: {server.make_url()}", flush=True)
    except KeyboardInterrupt:
        return 0


def _read(path: str, reader: RunReader, feed: PageFeed, metrics: RunMetrics) -> bool:
    """Read the run once; returns whether it is over."""
    reports = reader.read(read_run(path, wall()))
    metrics.add_reading(reports)
    feed.add_reading(reports)
    return reports.view.is_over


def _print_addresses(server: WatchServer, run: str, metrics_token_file: str | None) -> None:
    print(f"run {run} is at {server.make_url()}", flush=True)
    print("the address is valid once, for one browser; Enter prints another, Ctrl-C ends the page", flush=True)
    if metrics_token_file:
        where = f"http://{HOST}:{server.port}/metrics"
        print(f"figures for Prometheus are at {where}, with the token in {metrics_token_file}", flush=True)


def _entered(within_s: float) -> bool:
    """Whether somebody presses Enter on this terminal in so many seconds. Blocks."""
    if not sys.stdin or not sys.stdin.isatty():
        pause(within_s)
        return False
    return bool(select.select([sys.stdin], [], [], within_s)[0]) and sys.stdin.readline() != ""
