"""Says in one sentence why training is slow or stands still: which worker, and what would be gained without it.

Pure functions of the numbers that chief and ps report. The time that a worker's step takes by itself (`own_s`) is that
for which it reads data, computes, and moves values and gradients. What it waits for others is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

FACTOR = 1.5
"""A worker is named if its steps take so many times as long as the median of the others', in both halves of its last
steps."""
LEAST_STEPS, LEAST_S = 10, 2.0
"""Nothing is said of fewer steps, or of a shorter time."""
STILL_S, STILL_STEPS = 2.0, 3.0
"""A run stands still if somebody has waited for so long, and for so many times as long as the steps take of whom it
waits for."""
GAIN = 1.05
"""A smaller gain is none."""
READS, COMPUTES, MOVES, WAITS = "reading data", "computing", "moving values", "waiting for others"
KINDS = {"read_s": READS, "computed_s": COMPUTES, "moved_s": MOVES, "waited_s": WAITS}
FIELDS = ("steps", *KINDS)


class Worked(NamedTuple):
    """The last steps of a worker: how many, and the seconds of each kind for one of them."""

    steps: float
    read_s: float
    computed_s: float
    moved_s: float
    waited_s: float

    @classmethod
    def of(cls, pieces: Sequence[Sequence[float]]) -> Worked:
        """The mean over pieces that have steps."""
        steps, *seconds = (sum(column) for column in zip(*pieces, strict=True))
        return cls(steps, *(each / steps for each in seconds))

    @property
    def own_s(self) -> float:
        """Seconds of a step without those that it waits."""
        return self.read_s + self.computed_s + self.moved_s

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.own_s + self.waited_s


class Recent(NamedTuple):
    """The last steps of a worker: all of them, and each half."""

    whole: Worked
    halves: tuple[Worked, Worked]

    @classmethod
    def of(cls, pieces: Sequence[Sequence[float]], steps_each: int = 1) -> Recent | None:
        """Of as few of the last pieces as have enough steps and time; None if all of them have too little.
        `steps_each`: what a step counts for, in local mode the steps of a round."""
        chosen: list[Sequence[float]] = []
        steps = seconds = 0.0
        for piece in reversed(pieces):
            if steps >= LEAST_STEPS and seconds >= LEAST_S and len(chosen) > 1:
                break
            if piece[0] > 0:
                chosen.insert(0, piece)
                steps, seconds = steps + piece[0] * steps_each, seconds + sum(piece[1:])
        pieces = chosen
        if steps < LEAST_STEPS or seconds < LEAST_S or len(pieces) < 2:
            return None
        ends = list(accumulate(sum(piece[1:]) for piece in pieces))
        middle = min(range(1, len(pieces)), key=lambda at: abs(ends[at - 1] - seconds / 2))
        return cls(Worked.of(pieces), (Worked.of(pieces[:middle]), Worked.of(pieces[middle:])))


def worker_times(ps: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the time of each worker goes to, by its name, out of the reports of the ps. Workers that have told nothing
    are missing. Of a worker that has told several ps, the last report counts."""
    found: dict[str, dict[str, Any]] = {}
    for values in ps.values():
        for name, session in values.get("sessions", {}).items():
            times = session.get("times")
            if times is not None and times["steps"] >= found.get(name, times)["steps"]:
                found[name] = times
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def sentence(
    workers: Mapping[str, Mapping[str, Any]], update: Mapping[str, Any], waits: Mapping[str, Any] | None = None,
    away: Mapping[str, Sequence[float]] | None = None,
) -> str:  # fmt: skip
    """Why the training is slow or stands still; "" if there is nothing to say.

    Args:
        workers: As of `worker_times`.
        update: The settings of the update mode, as on the wire: "mode", and what goes with it.
        waits: Who waits for whom, as the step ps reports it; None or {}: nobody.
        away: The ps that the chief waits for: since how many seconds, and for how many more; None: none.
    """
    if away:
        return _sentence(["the chief"], list(away), max(since for since, _ in away.values()),
                         min(until for _, until in away.values()))  # fmt: skip
    steps_each = update["steps"] if update.get("mode") == "local" else 1
    found = {name: Recent.of(times["recent"], steps_each) for name, times in workers.items()}
    recent = {name: each for name, each in found.items() if each is not None}
    if waits and waits["since_s"] >= _still_s(recent, waits["for"]):
        return _sentence(waits["who"], waits["for"], waits["since_s"], waits["until_s"])
    slow = _slowest(recent)
    if slow is None:
        return ""
    others = [each for name, each in recent.items() if name != slow]
    own, whole = recent[slow].whole, [each.whole for each in others]
    usual_s = median(each.own_s for each in whole)
    kind, share = _cause(recent[slow], whole)
    who = f"{_spoken(slow)} is {own.own_s / usual_s:.1f} times slower than the median, {share:.0%} of it {kind}"
    return f"{who.replace('%', ' %')}; {_outlook(own, whole, update)}"


def _still_s(recent: Mapping[str, Recent], whom: Sequence[str]) -> float:
    """From which time on a wait for these workers is a standstill, and not one of their usual steps."""
    steps_s = [recent[name].whole.step_s for name in whom if name in recent]
    return max([STILL_S, *(STILL_STEPS * step_s for step_s in steps_s)])


def _sentence(who: Sequence[str], whom: Sequence[str], since_s: float, until_s: float | None) -> str:
    """Who waits for whom, since when, and until when (None: for ever)."""
    verb = "waits" if len(who) == 1 else "wait"
    gives_up = "gives up" if len(who) == 1 else "the first of them gives up"
    until = "without a deadline" if until_s is None else f"and {gives_up} in {until_s:.0f} s"
    return f"{_listed(who)} {verb} for {_listed(whom)}, for {since_s:.0f} s so far, {until}"


def _slowest(recent: Mapping[str, Recent]) -> str | None:
    """The worker whose steps take longest by themselves, if that is far longer than those of the others."""
    if len(recent) < 2:
        return None
    slow = max(recent, key=lambda name: recent[name].whole.own_s)
    others = [each for name, each in recent.items() if name != slow]
    usual_s = median(each.whole.own_s for each in others)
    least_s = min(each.own_s for each in (recent[slow].whole, *recent[slow].halves))
    return slow if usual_s > 0 and least_s >= FACTOR * usual_s else None


def _cause(slow: Recent, others: Sequence[Worked]) -> tuple[str, float]:
    """What takes more time than in the others, by most, in both halves; and its share of the worker's own time."""

    def more_s(kind: str) -> float:
        usual_s: float = median(getattr(each, kind) for each in others)
        return min(float(getattr(half, kind)) for half in slow.halves) - usual_s

    kind = max((kind for kind in KINDS if kind != "waited_s"), key=more_s)
    return KINDS[kind], getattr(slow.whole, kind) / slow.whole.own_s


def _outlook(own: Worked, others: Sequence[Worked], update: Mapping[str, Any]) -> str:
    """What happens to the steps of the run without the slow worker."""
    mode = update.get("mode", "async")
    if mode == "async":
        rates = [1 / each.step_s for each in (own, *others)]
        share = f"{rates[0] / sum(rates):.0%}".replace("%", " %")
        return f"it gives {share} of the steps; taking it away gains nothing"
    gain = expected_gain(own, others, update)
    return f"without it {gain:.1f} times more steps/s" if gain >= GAIN else "taking it away gains nothing"


def expected_gain(own: Worked, others: Sequence[Worked], update: Mapping[str, Any]) -> float:
    """How many times as many steps a second the run makes without a worker, where workers wait for each other.

    In sync and in local mode a step takes as long as the slowest of the workers that it waits for. In bounded mode
    each worker's push is a step, and in the long run all go as fast as the slowest.
    """
    rest = sorted(each.own_s for each in others)
    if not rest or rest[-1] <= 0:
        return 1.0
    if update.get("mode") == "bounded":
        return len(rest) / (len(rest) + 1) * own.own_s / rest[-1]
    wanted = update.get("replicas_to_aggregate") or len(rest) + 1
    every = sorted([*rest, own.own_s])
    before, after = every[min(wanted, len(every)) - 1], rest[min(wanted, len(rest)) - 1]
    return before / after if after > 0 else 1.0


def _spoken(name: str) -> str:
    """A task's name for people: "worker 2"."""
    return name.replace(":", " ")


def _listed(names: Sequence[str]) -> str:
    spoken = [_spoken(name) for name in names]
    return spoken[0] if len(spoken) == 1 else f"{', '.join(spoken[:-1])} and {spoken[-1]}"
