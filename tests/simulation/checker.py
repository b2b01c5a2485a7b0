"""The promises, checked on one simulated run from what happened, what the workers saw and what is on the disk."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from dps.checkpoint import candidates, load, newest_whole, read_part
from dps.checkpoint.manifest import Manifest
from dps.errors import CheckpointError, DeadlineExceeded, TaskLost, Unavailable
from dps.launch.commands.simulate import SimulatedCluster
from dps.training.update_modes import SyncReplicas, Update
from dps.transport.sim.trace import TraceEvent
from tests.simulation import aging, assigned, keyed
from tests.simulation.history import DIR, FIXED, Ack, History
from tests.simulation.replaying import Applied, PushId, Sets, marks_of, replay


def violations(
    cluster: SimulatedCluster, history: History, mode: str, bound: int, killed: set[str], update: Update
) -> list[str]:
    """Every promise that the run broke, as sentences; empty when all hold."""
    applied = Applied(cluster, isinstance(update, SyncReplicas) and update.reduction == "sum")
    found = [*history.torn[:3], *history.backwards[:3]]
    found += ended(cluster, killed, () if history.plan is None else history.plan.without_empty().ps)
    found += applied_once(applied, history.variety.some)
    found += no_more_than_sent(cluster, applied)
    found += acknowledged(cluster, applied, history, mode)
    found += () if history.variety.some else hidden(cluster, applied, history)
    if mode == "sync":
        found += same_sets(applied)
        assert isinstance(update, SyncReplicas)
        found += () if history.variety.spoils else whole_quotas(cluster, update)  # a refused push lowers one
        found += tokens_in_order(cluster, update)
    if mode == "bounded":
        found += bounded(cluster, bound, history.plan is not None and len(history.plan.ps) == 1)
    found += on_disk(cluster, applied, history)
    found += [*keyed.on_disk(cluster, history), *aging.violations(cluster, history)] if history.keyed else ()
    if not history.variety.some:  # a push of some variables goes to some ps
        found += evenly(cluster, applied, history)
    found += epochs_rise(cluster)
    found += announced(cluster, applied, history, mode)
    found += last_is_saved(cluster, applied, history)
    if mode == "sync":
        found += one_step(cluster, applied)
    return found


def ended(cluster: SimulatedCluster, killed: set[str], holders: tuple[int, ...]) -> Iterator[str]:
    if not any(e.what == "admitted" for e in cluster.world.trace) and len(killed) == cluster.workers:
        return  # no worker ever came: the others wait for one, as they should
    lost = {e.detail["name"] for e in cluster.world.trace if e.what == "worker lost"}
    given_up = lost | {e.detail["name"] for e in cluster.world.trace if e.what == "worker absent"}
    came = lost | {e.detail["name"] for e in cluster.world.trace if e.what == "admitted"}
    for name, process in cluster.world.processes.items():
        for problem in process.task_errors:
            yield f"{name}: a task raised {problem!r}"
        if process.state == "running":
            yield f"{name} still runs at the end"
        elif any(words in str(process.error) for words in ("the first checkpoint cannot be written", "cannot begin: ")):
            continue  # the disk was full: the user is told at once
        elif "cannot write checkpoints to" in str(process.error) and not cluster.world.counts.get("saved"):
            continue
        elif (name in killed or name in given_up) and isinstance(process.error, TaskLost | Unavailable):
            continue  # came back, or was reached again, when the others had finished
        elif (
            isinstance(process.error, DeadlineExceeded) and "; this cluster has" in str(process.error) and killed - came
        ):
            continue  # a worker was killed before it came: no step is made without it
        elif name == "chief" and process.incarnation and process.exit_code == 3 and over(cluster, killed):
            continue  # started again after everybody had been told to end
        elif (
            name.startswith("ps")
            and process.exit_code == 3
            and (process.incarnation or stood_still_at_the_end(cluster, name))
            and missed_the_end(cluster, killed)
        ) or (process.exit_code == 3 and not name.startswith("worker") and lost_for_good(cluster, killed, holders)):
            continue
        elif name == "chief" and process.exit_code == 0 and not somebody_finished(cluster):
            yield "the chief ended with 0, and no worker had finished"
        elif process.state == "ended" and process.exit_code != 0:
            yield f"{name} ended with {process.exit_code}: {process.error!r}"
        elif process.state == "killed" and name not in killed:
            yield f"{name} is dead"


def lost_for_good(cluster: SimulatedCluster, killed: set[str], holders: tuple[int, ...]) -> bool:
    """Something without which a run cannot end with 0. `holders`: the ps with variables."""
    return gave_up(cluster) or deserted(cluster) or nobody_knows(cluster, killed, holders)


def deserted(cluster: SimulatedCluster) -> bool:
    """All workers were lost and none had finished: the run ends with 3 and names them."""
    return any(e.what == "nobody finished" for e in cluster.world.trace) and not somebody_finished(cluster)


def somebody_finished(cluster: SimulatedCluster) -> bool:
    """Whether a worker's program has ended well, or at least one of its sessions."""
    closed = any(e.what == "ended" and not (e.detail["lost"] or e.detail["failed"]) for e in cluster.world.trace)
    return closed or any(p.exit_code == 0 for n, p in cluster.world.processes.items() if n.startswith("worker"))


def gave_up(cluster: SimulatedCluster) -> bool:
    """A ps was lost before or while the last checkpoint was written: the run ends with 3 and says what is lost."""
    reasons = [e.detail["reason"] for e in cluster.world.trace if e.what == "failed"]
    words = "during the last checkpoint", "the last checkpoint could not be written"
    return any(any(word in reason for word in words) for reason in reasons)


def missed_the_end(cluster: SimulatedCluster, killed: set[str]) -> bool:
    """The run has ended well: a ps that was dead meanwhile, or stood still, finds nobody."""
    there = {n: p for n, p in cluster.world.processes.items() if not n.startswith("ps") and n not in killed}
    return all(p.exit_code == 0 for p in there.values())


def stood_still_at_the_end(cluster: SimulatedCluster, name: str) -> bool:
    """The process was stopped when the chief ended, which a chief does without a ps that has not come to it: one that
    an earlier chief knew, and that no variable is on."""
    over = max((e.time_s for e in cluster.world.trace if e.what == "exit" and e.process == "chief"), default=math.inf)
    return any(e.what == "resume" and e.process == name and e.time_s > over for e in cluster.world.trace)


def nobody_knows(cluster: SimulatedCluster, killed: set[str], holders: tuple[int, ...]) -> bool:
    """The chief died when all workers had finished, or they did before another epoch began, and no ps that came to the
    next chief had served the run: it was told of the end and is gone, was started again, too, or holds no variables.
    So the next chief cannot know how the run had ended, or that its last step was still to be saved."""
    world, began = cluster.world, max((e.time_s for e in cluster.world.trace if e.what == "epoch"), default=0.0)
    died = max((e.time_s for e in world.trace if e.what == "kill" and e.process == "chief"), default=-1.0)
    told = {e.process for e in world.trace if e.what == "exit" and e.detail["code"] == 0 and e.time_s <= died}
    blank = {e.process for e in world.trace if e.what == "kill" and e.time_s > began}
    others = {f"ps:{task}" for task in holders} - told
    workers = [p for name, p in world.processes.items() if name.startswith("worker") and name not in killed]
    return began <= died and all(p.exit_code == 0 for p in workers) and others <= blank


def over(cluster: SimulatedCluster, killed: set[str]) -> bool:
    others = {n: p for n, p in cluster.world.processes.items() if n != "chief" and n not in killed}
    return all(p.exit_code == 0 for p in others.values())


def applied_once(applied: Applied, some: bool) -> Iterator[str]:
    """`some`: there are updates of nothing, which make no version."""
    for (ps, epoch), rows in applied.of.items():
        seen: set[tuple[int, int]] = set()
        for index, (counter, _, pushes) in enumerate(rows):
            if counter != index + 1 and not some:
                yield f"{ps} epoch {epoch}: version {counter} follows {index}"
            for _, incarnation, number in pushes:
                if (incarnation, number) in seen:
                    yield f"{ps} epoch {epoch}: push {number} of incarnation {incarnation} was applied twice"
                seen.add((incarnation, number))


def no_more_than_sent(cluster: SimulatedCluster, applied: Applied) -> Iterator[str]:
    """A gradient that is sent again keeps its number. (One may be sent under the incarnation after its record.)"""
    sent = Counter(e.detail["incarnation"] for e in cluster.world.trace if e.what == "sending")
    sent += Counter(e.detail["incarnation"] for e in cluster.world.trace if e.what == "setting" and e.detail["assigns"])
    highest: dict[int, int] = {}
    for rows in applied.of.values():
        for _, _, pushes in rows:
            for _, incarnation, number in pushes:
                highest[incarnation] = max(number, highest.get(incarnation, 0))
    for incarnation, number in highest.items():
        if number > sent[incarnation] + 1:
            yield f"push {number} of incarnation {incarnation} was applied, which sent {sent[incarnation]}"


def acknowledged(cluster: SimulatedCluster, applied: Applied, history: History, mode: str) -> Iterator[str]:
    last_epoch = max((e.detail["epoch"] for e in cluster.world.trace if e.what == "epoch"), default=0)
    if any(e.what == "ps lost" for e in cluster.world.trace) or cluster.world.processes["chief"].incarnation:
        last_epoch += 1  # also when nobody was left to begin it
    for ack in history.acks:
        if ack.push.accepted:
            for ps, number in ack.numbers.items():
                at_the_end = mode == "sync" and applied.last_step(f"ps:{ps}", ack.epoch) <= ack.push.step
                if at_the_end and (ps != 0 or ack.epoch < last_epoch):
                    continue  # its token came first; the epoch ended before, and `on_disk` looks at what is kept
                if (ack.incarnation, number) not in applied.pushes(f"ps:{ps}", ack.epoch):
                    yield f"push {number} of incarnation {ack.incarnation} was acknowledged and is not on ps:{ps}"
    for told in history.assigned:
        for ps, number in told["numbers"].items():
            if (told["incarnation"], number) not in applied.pushes(f"ps:{ps}", told["epoch"]):
                yield f"the values of {told} were acknowledged and are not on ps:{ps}"


def hidden(cluster: SimulatedCluster, applied: Applied, history: History) -> Iterator[str]:
    """A push that was not accepted is on no ps but those that its result names. (A rollback, and a chief that was
    killed, may leave one that nobody was told of.)"""
    if any(e.what == "ps lost" or (e.what == "kill" and e.process == "chief") for e in cluster.world.trace):
        return
    for ack in history.acks:
        there = {
            f"ps:{p}" for p, n in ack.numbers.items() if (ack.incarnation, n) in applied.pushes(f"ps:{p}", ack.epoch)
        }
        if not ack.push.accepted and there != set(ack.push.applied_by):
            yield f"{ack} was not accepted, and is on {sorted(there)}"


def same_sets(applied: Applied) -> Iterator[str]:
    sets: dict[tuple[int, int], tuple[str, tuple[PushId, ...]]] = {}
    for (ps, epoch), rows in applied.of.items():
        for before, after in itertools.pairwise(rows):
            if after[1] != before[1] + 1:
                yield f"{ps} epoch {epoch}: step {after[1]} follows {before[1]}"
        for _, step, pushes in rows:
            other, there = sets.setdefault((epoch, step), (ps, pushes))
            if pushes != there:
                yield f"epoch {epoch} step {step}: {ps} has the set {pushes}, {other} has {there}"
            if list(pushes) != sorted(pushes):
                yield f"epoch {epoch} step {step}: {ps} summed in the order {pushes}"


def whole_quotas(cluster: SimulatedCluster, update: SyncReplicas) -> Iterator[str]:
    """Only workers that came, and then finished or were lost, lower the quota of a step. One that comes back is counted
    again from the first step that has its gradient: until then it may be waiting for the step in hand to end.

    A restarted chief knows of more ends than it tells here; so its run is looked at up to its first death.
    """
    ended: set[str] = set()
    there: set[str] = set()
    returned: dict[int, str] = {}
    most, nobody = 0, False
    for event in cluster.world.trace:
        detail = event.detail
        if event.process == "chief" and event.what == "kill":
            return
        if event.what == "admitted":
            there.add(detail["name"])
            returned[detail["incarnation"]] = detail["name"]
        elif event.what in ("ended", "finished", "worker lost"):
            returned = {incarnation: name for incarnation, name in returned.items() if name != detail["name"]}
            ended.add(detail["name"])
            there.discard(detail["name"])
            back = ended.intersection(returned.values())
            most, nobody = max(most, len(ended)), nobody or there <= back
        elif event.what == "applied" and event.process == "ps:0":
            quota = quota_of(update, cluster.workers, most)
            if len(detail["pushes"]) < quota and not nobody:  # what was acknowledged is applied when all are gone
                yield f"epoch {detail['epoch']} step {detail['step']}: {detail['pushes']} is below the quota of {quota}"
            ended -= {returned.pop(incarnation) for _, incarnation, _ in detail["pushes"] if incarnation in returned}


def tokens_in_order(cluster: SimulatedCluster, update: SyncReplicas) -> Iterator[str]:
    """Tokens have the value of the current step; with initial tokens they are those that were made, oldest first.

    Once a worker has ended, some are left out, and steps make fewer. At a standstill, when none is left, one has the
    value of the current step.
    """
    queued, queue, epoch, step, ended = update.initial_tokens is not None, deque[int](), -1, 0, False
    restored = {e.detail["epoch"]: e.detail["step"] for e in cluster.world.trace if e.what == "epoch"}
    for event in cluster.world.trace:
        detail = event.detail
        ended = ended or event.what in ("ended", "finished", "worker lost", "kill")
        if event.process != "ps:0" or event.what not in ("applied", "token"):
            continue
        if detail["epoch"] != epoch:
            epoch, step = detail["epoch"], restored[detail["epoch"]]
            queue = deque([step] * (update.initial_tokens or 0))
        if event.what == "applied":
            step = detail["step"]
            queue.extend([step] * max(quotas(update, cluster.workers)))
            continue
        left = list(queue)
        while queued and queue and ended and queue[0] != detail["step"]:
            queue.popleft()
        if detail["step"] != (queue.popleft() if queued and queue else step):
            yield f"{event.time_s:.3f}: a token of step {detail['step']} at step {step}, where {left} were left"


def quotas(update: SyncReplicas, workers: int) -> tuple[int, int]:
    """Gradients and replicas of a step, as they are configured."""
    total = update.total_num_replicas or workers
    return update.replicas_to_aggregate or total, total


def quota_of(update: SyncReplicas, workers: int, gone: int) -> int:
    """How many gradients make a step when so many of the workers have come and gone."""
    aggregate, total = quotas(update, workers)
    return aggregate if aggregate > total else min(aggregate, max(1, total - gone))


def bounded(cluster: SimulatedCluster, bound: int, alone: bool) -> Iterator[str]:
    """Clocks by incarnation; a worker's begins at the lowest that the step ps knows when it hears of it.

    `alone`: one ps holds all variables, and what it applies is acknowledged.
    """
    clocks: dict[int, int] = {}
    owner: dict[str, int] = {}
    for event in cluster.world.trace:
        detail = event.detail
        if event.what == "epoch":
            clocks, owner = {}, {}
        elif event.what == "admitted":
            owner[detail["name"]] = detail["incarnation"]
        elif event.what == "clocks" and event.process == "ps:0":
            clocks = {i: clocks.get(i, clock) for i, clock in detail["clocks"].items()}
        elif event.what == ("applied" if alone else "acked"):
            for incarnation in acknowledged_by(event, owner):
                if incarnation in clocks:
                    clocks[incarnation] += 1
        elif event.what == "pulled" and event.process == "ps:0" and detail["incarnation"] in clocks:
            ahead = clocks[detail["incarnation"]] - min(clocks.values())
            if ahead > bound:
                yield f"{event.time_s:.3f}: incarnation {detail['incarnation']} read {ahead} ahead of the slowest"


def acknowledged_by(event: TraceEvent, owner: dict[str, int]) -> list[int]:
    """Incarnations of the pushes that are acknowledged here: at the only ps that applies them, else at the session."""
    if event.what == "applied":
        return [incarnation for _, incarnation, _ in event.detail["pushes"]]
    return (
        [owner.get(f"worker:{event.detail['worker']}", -1)]
        if event.detail["accepted"] and not event.detail["kept"]
        else []
    )


def on_disk(cluster: SimulatedCluster, applied: Applied, history: History) -> Iterator[str]:
    """The last checkpoint holds exactly what was applied on the way to it, through every rollback."""
    storage = cluster.world.storage
    if not candidates(storage, DIR):
        return
    last = newest_whole(storage, DIR, lambda _: None)
    if history.plan is None or (last is None and not cluster.world.counts.get("saved")):
        return
    assert last is not None
    marks, sets = {ps: marks_of(cluster, ps) for ps in history.plan.ps}, Sets(cluster)
    for part in history.plan.parts:
        spec = history.plan.variables[part.variable]
        if spec.name == FIXED:
            continue
        if spec.name in assigned.NAMES:
            value = sets.replay(applied, last, history.plan.ps.index(part.ps), part.ps, marks[part.ps], spec.name)
            got = read_part(storage, DIR, last, spec.name, part.row0, part.shape[0])
            if set(got.tolist()) != {value}:
                yield f"{last.name} {spec.name}: row {part.row0} on ps:{part.ps} holds {got.tolist()}, not {value}"
            continue
        wanted = np.zeros(history.cells, np.float32)
        replay(cluster, applied, last, history.plan.ps.index(part.ps), part.ps, marks[part.ps], wanted)
        wanted = wanted[part.row0 : part.row0 + part.shape[0]]
        got = read_part(storage, DIR, last, spec.name, part.row0, part.shape[0])
        for column in got.reshape(len(wanted), -1).T:
            if not np.array_equal(column, wanted):
                cells = np.flatnonzero(column != wanted)[:5]
                values = f"{column[cells].tolist()}, not {wanted[cells].tolist()}"
                yield f"{last.name} {spec.name}: cells {(part.row0 + cells).tolist()} hold {values}"


def evenly(cluster: SimulatedCluster, applied: Applied, history: History) -> Iterator[str]:
    """A checkpoint that says that all its shards have the same pushes has none that only some of them have."""
    storage = cluster.world.storage
    for name in candidates(storage, DIR) if history.plan is not None else ():
        with contextlib.suppress(CheckpointError):  # one that was never finished
            saved = load(storage, DIR, name, verify=False)
            if saved.even:
                yield from uneven(saved, applied, history)


def uneven(saved: Manifest, applied: Applied, history: History) -> Iterator[str]:
    """See `evenly`."""
    held: list[set[tuple[int, int]]] = []
    for shard, ps in zip(saved.shards, history.plan.ps, strict=True):
        held.append(set())
        for counter, _, pushes in applied.of.get((f"ps:{ps}", saved.epoch), []):
            of = {(incarnation, number) for _, incarnation, number in pushes}
            if counter <= shard.version:
                held[-1] |= of
    differ = sorted(push for push in set().union(*held) if any(push not in of for of in held))
    if differ:
        yield f"{saved.name} says that its shards have the same pushes, and not all have {differ[:5]}"


def epochs_rise(cluster: SimulatedCluster) -> Iterator[str]:
    """No run epoch is used twice, whichever chief begins it."""
    numbers = [e.detail["epoch"] for e in cluster.world.trace if e.what == "epoch"]
    for before, after in itertools.pairwise(numbers):
        if after <= before:
            yield f"run epoch {after} began after {before}"


def announced(cluster: SimulatedCluster, applied: Applied, history: History, mode: str) -> Iterator[str]:
    """What sessions say of lost steps, against the pushes that were acknowledged and the steps that were made.

    A count that is said to be certain has all acknowledged pushes of all sessions, also of those that are gone; one
    that is said to be the least has the session's own. Neither has more than the steps that any ps made, also in run
    epochs that the session slept through.
    """
    begun = {e.detail["epoch"]: e.detail["restore"] for e in cluster.world.trace if e.what == "epoch"}
    for event in cluster.world.trace:
        told = event.detail
        if event.what != "rejoined" or told["epoch"] == told["before"] or history.plan is None:
            continue
        before, restored = told["before"], begun[told["epoch"]]
        lost = lost_pushes(cluster, applied, history, before, restored) if restored else []
        own = [ack for ack in lost if f"worker:{ack.worker}" == event.process and ack.push.step > told["step"]]
        if mode == "sync":
            steps = {ack.push.step for ack in lost if ack.push.step > told["step"]}
            least, wanted = len({ack.push.step for ack in own}), len(steps)
        else:
            least, wanted = len(own), len(lost)
        made = max(
            [applied.last_step(f"ps:{ps}", e) for ps in history.plan.ps for e in begun if e < told["epoch"]]
            + [ack.push.step for ack in history.acks if ack.epoch < told["epoch"]]
        )
        if told["lost"] < (wanted if told["certain"] else least):
            kind = "" if told["certain"] else "at least "
            yield f"{event.process}: {kind}{told['lost']} steps lost in epoch {before}, where {wanted} pushes were"
        if told["lost"] > max(0, made - told["step"]):
            yield f"{event.process}: {told['lost']} steps lost in epoch {before}, of {made - told['step']} made"


def lost_pushes(
    cluster: SimulatedCluster, applied: Applied, history: History, epoch: int, restored: str
) -> list[Ack]:  # fmt: skip
    """The acknowledged pushes of a run epoch that are not in a checkpoint, or not on all of its ps."""
    manifest = load(cluster.world.storage, DIR, restored, verify=False)
    kept = []
    for shard, ps in zip(manifest.shards, history.plan.ps, strict=True):
        rows = applied.of.get((f"ps:{ps}", epoch), []) if manifest.epoch == epoch else []
        kept.append((ps, {(i, n) for counter, _, pushes in rows if counter <= shard.version for _, i, n in pushes}))
    acks = [ack for ack in history.acks if ack.epoch == epoch and ack.push.accepted]
    return [a for a in acks if any((a.incarnation, a.numbers[ps]) not in there for ps, there in kept)]


def last_is_saved(cluster: SimulatedCluster, applied: Applied, history: History) -> Iterator[str]:
    """A run with a checkpoint_dir that ends with 0 has its last step in a checkpoint."""
    storage = cluster.world.storage
    begun = [e.detail for e in cluster.world.trace if e.what == "epoch"]
    if cluster.world.processes["chief"].exit_code != 0 or not candidates(storage, DIR) or history.plan is None:
        return
    last = newest_whole(storage, DIR, lambda _: None)
    step = max(applied.last_step(f"ps:{history.plan.ps[0]}", begun[-1]["epoch"]), begun[-1]["step"])
    if last is None or last.step != step:
        yield f"the run ended with 0 at step {step}, and its last checkpoint is {last and last.name}"


def one_step(cluster: SimulatedCluster, applied: Applied) -> Iterator[str]:
    """In sync every checkpoint is of one step on all ps."""
    storage = cluster.world.storage
    restored = {e.detail["epoch"]: e.detail["step"] for e in cluster.world.trace if e.what == "epoch"}
    for name in [e.detail["name"] for e in cluster.world.trace if e.what == "saved"]:
        manifest = load(storage, DIR, name, verify=False)
        for ps, shard in enumerate(manifest.shards):
            rows = [r for r in applied.of.get((f"ps:{ps}", manifest.epoch), []) if r[0] <= shard.version]
            steps = [r[1] for r in rows if r[0] == rows[-1][0]] or [restored[manifest.epoch]]  # some may be of nothing
            if manifest.step not in steps:
                yield f"{name}: ps:{ps} was copied at step {steps[-1]}"
