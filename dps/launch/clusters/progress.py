"""Shows how far a run is while somebody waits for it: with tqdm, in plain lines, or not at all."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from dps.transport.current import runtime

DELAY_S = 1.0
"""A shorter wait shows nothing."""
LINE_S = 10.0
"""How often a plain line is written."""
SAMPLES = 50
"""Speeds are measured over this many calls of `look`."""


class RunProgress:
    """How far a run is, computed from the newest rows of its history."""

    def __init__(self, goes_on: bool = False) -> None:
        """`goes_on`: an earlier run has left variables."""
        self.goes_on = goes_on
        self.step = self.pushes = self.examples = self.sessions = 0
        self.loss: float | None = None
        self._newest_at = float("-inf")
        self.last_step: int | None = None
        """The last step of the sessions' StopAtStep hooks; None if there is none."""
        self.batches: dict[str, int] = {}
        """Examples in one push of each worker that a hook has told."""
        self.placement: list[list[int]] = []
        """Of each ps the task, the bytes of its values and those of their slots, when the last session opened."""

    def opened(self, session: dict[str, Any]) -> None:
        """Note that a worker has opened a session: its step, and the settings of its hooks."""
        self.sessions += 1
        self.placement = session["placement"]
        self.step = max(self.step, session["step"])
        self.last_step = session["last_step"] if session["last_step"] is not None else self.last_step
        if session["batch"] is not None:
            self.batches[session["worker"]] = session["batch"]

    @property
    def has_variables(self) -> bool:
        """Whether the cluster has variables now."""
        return self.goes_on or self.sessions > 0

    def pushed(self, row: dict[str, Any], at: float) -> None:
        """Note that a worker has pushed. `at`: when, on any clock that is the same for all; a late row changes no step
        and no loss."""
        self.pushes += 1
        if at >= self._newest_at:
            self._newest_at, self.step = at, row["step"]
            self.loss = row["loss"] if row["loss"] is not None else self.loss
        self.examples += self.batches.get(row["worker"], 0)

    def __str__(self) -> str:
        of = "" if self.last_step is None else f" of {self.last_step}"
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"step {self.step}{of}{loss}"


class Display(Protocol):
    """Shows how far a run is."""

    def show(self) -> None:
        """Called several times a second while somebody waits."""

    def close(self) -> None:
        """Called when the wait is over."""


class NoDisplay:
    """Shows nothing."""

    def show(self) -> None:
        pass

    def close(self) -> None:
        pass


class RunSpeed:
    """Steps and examples per second, over the last seconds."""

    def __init__(self, standing: RunProgress) -> None:
        self._standing = standing
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=SAMPLES)

    def measure_speed(self) -> tuple[float, float]:
        """Both speeds now; 0 if unknown."""
        self._samples.append((runtime().now(), self._standing.step, self._standing.examples))
        (then, step, examples), (now, step_now, examples_now) = self._samples[0], self._samples[-1]
        seconds = now - then
        return (max(0, step_now - step) / seconds, (examples_now - examples) / seconds) if seconds > 0 else (0.0, 0.0)


class LineDisplay:
    """A plain line every 10 s."""

    def __init__(self, standing: RunProgress, stream: TextIO) -> None:
        self._standing, self._stream, self._speed = standing, stream, RunSpeed(standing)
        self._next = runtime().now() + LINE_S

    def show(self) -> None:
        steps, examples = self._speed.measure_speed()
        if (now := runtime().now()) >= self._next:
            self._next = now + LINE_S
            text = f"{self._standing}, {steps:,.1f} steps/s" + (f", {examples:,.0f} examples/s" if examples else "")
            self._stream.write(f"[dps] {text}\n")
            self._stream.flush()

    def close(self) -> None:
        pass


class BarDisplay:
    """A tqdm bar, from the first push on, if the wait is not short; plain lines if tqdm is not installed."""

    def __init__(self, standing: RunProgress, stream: TextIO, module: str) -> None:
        """`module`: the module of tqdm with the bar for this kind of stream."""
        self._standing, self._stream, self._module = standing, stream, module
        self._speed = RunSpeed(standing)
        self._from = runtime().now() + DELAY_S
        self._bar: Any = None
        self._lines: LineDisplay | None = None

    def show(self) -> None:
        if self._lines is not None:
            self._lines.show()
            return
        examples = self._speed.measure_speed()[1]
        if self._bar is not None:
            self._draw(examples)
        elif self._standing.pushes and runtime().now() >= self._from:
            self._open_bar()

    def _open_bar(self) -> None:
        global _aside
        try:
            tqdm = importlib.import_module(self._module).tqdm
        except ImportError:
            self._lines = LineDisplay(self._standing, self._stream)
            return
        _aside = tqdm.external_write_mode
        standing = self._standing
        self._bar = tqdm(initial=standing.step, total=standing.last_step, unit="step", file=self._stream)

    def _draw(self, examples: float) -> None:
        standing, bar = self._standing, self._bar
        bar.n = standing.step
        if standing.last_step is not None:
            bar.total = max(standing.last_step, standing.step)
        more = {} if standing.loss is None else {"loss": f"{standing.loss:.4g}"}
        bar.set_postfix(more | ({"examples/s": f"{examples:,.0f}"} if examples else {}), refresh=False)
        bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._draw(self._speed.measure_speed()[1])
            self._bar.close()


def display(standing: RunProgress, wanted: bool | None) -> Display:
    """The display for this process. `wanted` None: show progress on a terminal and in a notebook only."""
    notebook = in_notebook()
    stream = sys.stdout if notebook else sys.stderr  # a notebook shows stderr in red
    if wanted is False or (wanted is None and not notebook and not stream.isatty()):
        return NoDisplay()
    return BarDisplay(standing, stream, "tqdm.notebook" if notebook and has_widgets() else "tqdm")


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def has_widgets() -> bool:
    """Whether tqdm can draw its bar as a widget."""
    return importlib.util.find_spec("ipywidgets") is not None


_aside: Callable[..., contextlib.AbstractContextManager[None]] | None = None
"""tqdm's function for writing beside a bar, once a bar was shown."""


def aside(stream: TextIO) -> contextlib.AbstractContextManager[None]:
    """A scope for writing lines to a terminal that shows a bar: the bar is removed, and drawn again afterwards."""
    return contextlib.nullcontext() if _aside is None else _aside(file=stream)
