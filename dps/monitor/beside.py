"""Worker processes that run beside the one that `dps bench` measures. Each repeats the work that it is told."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from dps.monitor.setting import Setting
from dps.process import config
from dps.task.server import Server
from dps.transport.current import runtime

PATIENCE_S = 60.0
IDLE, END = "idle", "end"


class ExtraWorker:
    """An additional worker: sends it orders and receives its answers."""

    def __init__(self) -> None:
        self.orders: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[float] = queue.Queue()

    def begin_work(self, work: str) -> None:
        """Make the worker repeat a work until the next order."""
        self.orders.put(work)

    def end_work(self) -> float:
        """Stop the worker after its current call; returns calls per second since `begin_work`. Blocks."""
        self.orders.put(IDLE)
        return self.answers.get(timeout=PATIENCE_S)


def work(server: Server, setting: Setting, orders: queue.Queue[str], answer: Callable[[float], None]) -> None:
    """Carry out orders until the last. Answers once when ready, then a rate (calls per second) for every work."""
    clock = runtime()
    with setting.session(server) as session:
        calls = setting.calls(session)
        answer(0.0)
        while (order := orders.get()) != END:
            if order == IDLE:
                continue
            done, began = 0, clock.now()
            while orders.empty():
                calls[order]()
                done += 1
            answer(done / (clock.now() - began))


@contextlib.contextmanager
def workers(target: str, setting: Setting) -> Iterator[list[ExtraWorker]]:
    """All workers but the first; threads if the cluster is in this process."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(_worker(target, setting, task)) for task in range(1, setting.workers)]
        yield made
        for one in made:
            one.orders.put(END)


@contextlib.contextmanager
def _worker(target: str, setting: Setting, task: int) -> Iterator[ExtraWorker]:
    beside = ExtraWorker()
    if target.startswith("inproc"):

        def run() -> None:
            with Server(None, "worker", task, chief=target, bind=f"{target}-worker-{task}") as server:
                work(server, setting, beside.orders, beside.answers.put)

        thread = runtime().spawn(f"worker {task}", run)
        yield beside
        thread.join(PATIENCE_S)
        return
    command = [sys.executable, "-m", "dps.monitor.beside", target, str(task), json.dumps(asdict(setting))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=config.environment()
    ) as process:
        threading.Thread(target=_send_orders, args=(process, beside), daemon=True).start()
        threading.Thread(target=_read_answers, args=(process, beside), daemon=True).start()
        try:
            yield beside
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def _send_orders(process: subprocess.Popen[str], beside: ExtraWorker) -> None:
    assert process.stdin is not None
    order = ""
    with contextlib.suppress(BrokenPipeError, ValueError):
        while order != END:
            order = beside.orders.get()
            process.stdin.write(order + "\n")
            process.stdin.flush()


def _read_answers(process: subprocess.Popen[str], beside: ExtraWorker) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):
        for line in process.stdout:
            beside.answers.put(float(line))


def main(arguments: Sequence[str]) -> None:
    """The process of an additional worker: TARGET TASK SETTING, then orders on stdin, a line each."""
    target, task, setting = arguments
    orders: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put(END)

    threading.Thread(target=read, daemon=True).start()
    with Server(None, "worker", int(task), chief=target, trusted_network=True) as server:
        work(server, Setting(**json.loads(setting)), orders, lambda rate: print(rate, flush=True))


if __name__ == "__main__":
    main(sys.argv[1:])
