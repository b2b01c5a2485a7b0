"""The training program of a chaos run: pushes gradients that count themselves, and writes down every one of them.

Started by `dps launch worker.py -- ORDER`, where ORDER is the JSON text of `Order`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dps
from tests.chaos import model
from tests.chaos.ledger import Ended, Led, Ledger, NothingNew, Opened, RolledBack, Saw, Sent, Settled

LEADS_EVERY_S = 0.7
STREAM = 3
"""Pushes on their way at once in a loop that does not wait for each."""


@dataclass(frozen=True)
class Order:
    """What the workers of a run are told."""

    folder: str
    """For the ledgers; the file `finish` in it ends the loops."""
    checkpoint_dir: str
    save_s: float
    workers: int
    update: str
    """"" for what the launcher was given; sync:N for N gradients a step."""
    pushes: str
    loop: str
    rows: int
    pace_s: float
    driver: int
    """The process that started this run; without it the loops end."""

    def text(self) -> str:
        return json.dumps(asdict(self))


class Writes(dps.Hook):
    """Writes each push down before it is sent, and its result."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.on_way, self.number = ledger, deque[int](), 0
        self.accepted_since_pull = False

    def after_create_session(self, session: dps.Session) -> None:
        self.ledger.write(Opened(time.monotonic(), *state(session)[:1], session.global_step))

    def before_run(self, session: dps.Session) -> None:
        self.number += 1
        self.on_way.append(self.number)
        self.ledger.write(Sent(time.monotonic(), self.number, *state(session)))

    def after_run(self, session: dps.Session, push: dps.Push, loss: Any) -> None:
        self.accepted_since_pull = self.accepted_since_pull or push.accepted
        number = self.on_way.popleft()
        self.ledger.write(Settled(time.monotonic(), number, push.accepted, push.step, *state(session)))

    def rolled_back(self, session: dps.Session, step: int, lost: int) -> None:
        self.ledger.write(RolledBack(time.monotonic(), state(session)[0], step, lost))


def state(session: dps.Session) -> tuple[int, int]:
    """The session's run epoch and incarnation. No public name gives them at any moment."""
    return session._connection.membership.epoch, session._connection.caller.incarnation


class Loop:
    """The training loop: until the driver has made the file `finish` or is gone, or the session should stop."""

    def __init__(self, session: dps.Session, task: int, order: Order, writes: Writes) -> None:
        self.session, self.task, self.order, self.writes, self.ledger = session, task, order, writes, writes.ledger
        self.gradients = model.gradients(order.pushes, order.rows, task, order.workers)
        self._finish, self._driver = os.path.join(order.folder, "finish"), f"/proc/{order.driver}"
        self._ask_at = 0.0

    def run(self) -> None:
        turn = {"push": self._push, "step": self._step, "stream": self._stream}[self.order.loop]
        self._saw(self.session.pull())
        while self._goes_on() and not self.session.should_stop():
            turn()
            self._leads()
            time.sleep(self.order.pace_s)
        self._saw(self.session.pull())

    def _goes_on(self) -> bool:
        return not os.path.exists(self._finish) and os.path.exists(self._driver)

    def _saw(self, values: Any) -> None:
        found = {name: model.ends(array, self.task, self.order.workers) for name, array in values.items()}
        self.ledger.write(Saw(time.monotonic(), state(self.session)[0], found))
        self.writes.accepted_since_pull = False

    def _push(self) -> None:
        self.session.push(self.gradients)
        accepted = self.writes.accepted_since_pull
        known = self.session.version if self.writes.number % 4 else None
        values = self.session.pull(if_newer_than=known)
        if values is not None:
            self._saw(values)
        elif accepted:
            self.ledger.write(NothingNew(time.monotonic(), state(self.session)[0]))

    def _step(self) -> None:
        self._saw(self.session.step(self.gradients))

    def _stream(self) -> None:
        for reply in [self.session.push_async(self.gradients) for _ in range(STREAM)]:
            reply.result()
        self._saw(self.session.pull())

    def _leads(self) -> None:
        asked = time.monotonic()
        if asked >= self._ask_at:
            leads = self.session.is_chief
            self.ledger.write(Led(time.monotonic(), asked, leads, state(self.session)[1]))
            self._ask_at = time.monotonic() + LEADS_EVERY_S


def main() -> None:
    """Train as the order says; an error is written down and raised."""
    order = Order(**json.loads(sys.argv[1]))
    server = dps.Server.from_env()
    ledger = Ledger(Path(order.folder) / f"worker-{server.task}.jsonl")
    writes, error = Writes(ledger), "the process ended early"
    hooks: list[dps.Hook] = [writes]
    if order.checkpoint_dir:
        hooks.append(dps.CheckpointSaver(seconds=order.save_s))
    update = dps.SyncReplicas(int(order.update[5:]), order.workers) if order.update.startswith("sync:") else None
    try:
        with server, dps.Session(
            server, model.initial(order.pushes, order.rows), optimizer=dps.optim.SGD(1.0), update=update,
            checkpoint_dir=order.checkpoint_dir or None, keep_checkpoints=1_000_000, hooks=hooks,
        ) as session:  # fmt: skip
            Loop(session, server.task, order, writes).run()
        error = ""
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        ledger.write(Ended(time.monotonic(), error))


if __name__ == "__main__":
    main()
