"""`dps status`: a run or a cluster with its tasks, how far its training is, and its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from math import isfinite
from statistics import fmean
from typing import Any

from dps.cluster.identity import DEFAULT_CHIEF
from dps.errors import DeadlineExceeded
from dps.launch.commands.operating import StatusClient
from dps.launch.runs import folder, table
from dps.launch.runs.reports import RunReader, RunReports
from dps.launch.runs.times import local
from dps.launch.runs.view import find_live_runs, read_run
from dps.launch.runs.why import STILL_S, sentence, worker_times
from dps.launch.supervision.output import tell_if_slow
from dps.messages.runs import RUN
from dps.transport.clock import wall

ANSWER_S = 2.0
PS_COLUMNS = ("ps", "address", "state", "step", "version", "MB", "applied", "dropped", "refused")


def show_live(as_json: bool) -> int:
    """The only run that goes on, or all of them; without any, the cluster of the chief at the usual address."""
    where, at = folder.root(), wall()
    found = find_live_runs(where, at)
    if len(found) == 1:
        return show_run(found[0].path, as_json)
    if found and as_json:
        table.print_json([view.as_dict() for view in found])
    elif found:
        print(table.text(table.RUN_COLUMNS, [table.run_row(view, at) for view in found]))
        print(f"{len(found)} runs go on; dps status {found[-1].id} shows one")
    else:
        try:
            return show_cluster(DEFAULT_CHIEF, as_json)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"no run of dps launch goes on here, and {error}") from None
    return 0


def show_run(path: str, as_json: bool) -> int:
    """A run and its tasks."""
    view = read_run(path, wall())
    with (
        closing(RunReader("dps status", ANSWER_S)) as reader,
        tell_if_slow(f"asks the chief of run {view.id} and its ps"),
    ):
        reports = reader.read(view)
    told = run_values(reports)
    training = told["training"]
    if as_json:
        table.print_json(told)
        return 0
    values = view.values
    print(f"run {view.id} {view.asked.get('name', '')}: {view.state} since {local(values['since'])}")
    given = ", ".join(f"{name}={value}" for name, value in (view.asked.get("values") or {}).items())
    lines = {
        "command": view.asked.get("command"), "values": given,
        "resumes": view.asked.get("resumes"), "chief": values["chief"], "output": view.asked.get("output"),
        "folder": view.path, "exit code": values["exit_code"], "reason": values["reason"],
        "training": training_line(training) if training else reports.trouble and f"not known: {reports.trouble}",
        "why": training and training["why"],
        "last checkpoint": training and checkpoint_text(training),
        "published": training and published_text(training),
        "keyed tables": tables_text(reports.ps),
    }  # fmt: skip
    for name, value in lines.items():
        if value not in (None, "", {}):
            print(f"{name}: {value}")
    print(table.text(table.TASK_COLUMNS, [table.task_row(view, name) for name in view.tasks]))
    return 0


def run_values(reports: RunReports) -> dict[str, Any]:
    """A run as plain values: what `dps status ID --json` prints, and what the page of `dps watch` shows. `training` and
    `ps` are {} if the run does not go on, or the chief says nothing."""
    training = training_of(reports.chief, reports.ps) if reports.chief else {}
    return reports.view.as_dict() | {"training": training, "ps": reports.ps}


def training_of(chief: Mapping[str, Any], ps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """How far a training is, by the reports of chief and ps. The rates are those of all workers together, and the loss
    is the mean of the last losses of the workers; None: nobody has said."""
    progress, batches = chief["progress"], chief["batches"]
    steps = [values["step"] for values in ps.values() if "step" in values] or [told[0] for told in progress.values()]
    losses = [told[2] for told in progress.values() if told[2] is not None]
    loss = fmean(losses) if losses else None
    rates = {name: told[1] for name, told in progress.items()}
    known = rates and rates.keys() <= batches.keys()
    workers, update, waits = worker_times(ps), update_of(ps), waits_of(ps)
    return {
        "phase": chief["phase"], "text": chief["text"], "step": max(steps, default=None),
        "loss": loss if loss is None or isfinite(loss) else str(loss),
        "pushes_per_s": sum(rates.values()) if rates else None,
        "examples_per_s": sum(rate * batches[name] for name, rate in rates.items()) if known else None,
        "saved": chief["saved"], "saved_ago": chief["saved_ago"], "published": chief.get("published") or [],
        "update": update.get("mode"), "workers": workers, "waits": waits,
        "why": sentence(workers, update, waits, chief.get("away")),
    }  # fmt: skip


def update_of(ps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of the update mode, as on the wire; {}: no ps has said."""
    return next((values["update"] for values in ps.values() if "update" in values), {})


def tables_text(ps: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows and bytes of each keyed table on all ps, how unevenly rows are spread, and what has happened to keys;
    "" if there are none."""
    found: dict[str, list[Mapping[str, int]]] = {}
    for values in ps.values():
        for name, told in (values.get("tables") or {}).items():
            found.setdefault(name, []).append(told)
    return "; ".join(f"{name} {_table_text(parts)}" for name, parts in found.items())


def _table_text(parts: Sequence[Mapping[str, int]]) -> str:
    """A keyed table, by what its ps report."""
    rows, nbytes = [told["rows"] for told in parts], sum(told["nbytes"] for told in parts)
    texts = [f"{sum(rows):,} rows" + (f" ({min(rows):,} to {max(rows):,} on a ps)" if len(rows) > 1 else "")]
    texts.append(f"{nbytes / 1e6:,.1f} MB")
    forms = {
        "counted": "{:,} keys counted", "admitted": "{:,} keys admitted", "dropped": "{:,} gradients dropped",
        "expired": "{:,} rows expired", "refused": "{:,} pushes refused",
    }  # fmt: skip
    totals = {name: sum(told[name] for told in parts) for name in forms}
    return ", ".join(texts + [form.format(totals[name]) for name, form in forms.items() if totals[name]])


def waits_of(ps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Who has waited for whom for a while, as the step ps reports it; None: nobody."""
    found = next((values["standstill"] for values in ps.values() if values.get("standstill")), None)
    return found if found is not None and found["since_s"] >= STILL_S else None


def training_line(training: Mapping[str, Any]) -> str:
    """How far a training is, for people."""
    forms = {
        "step": "step {}", "loss": "loss {:.4g}", "pushes_per_s": "{:,.1f} pushes/s",
        "examples_per_s": "{:,.0f} examples/s",
    }  # fmt: skip
    values = {name: training[name] for name in forms if training[name] is not None}
    parts = [forms[name].format(float(value) if name == "loss" else value) for name, value in values.items()]
    if training["phase"] != RUN or not parts:
        parts.insert(0, training["text"])
    return ", ".join(parts)


def checkpoint_text(training: Mapping[str, Any]) -> str:
    """The last checkpoint, for people."""
    return ", saved ".join(text for text in (training["saved"], training["saved_ago"]) if text) or "none"


def published_text(training: Mapping[str, Any]) -> str:
    """The newest published version, for people; "" if there is none."""
    if not training["published"]:
        return ""
    number, label, step, seconds = training["published"]
    return f"{number}{f' {label!r}' if label else ''} of step {step}, {seconds:.0f} s ago"


def show_cluster(address: str, as_json: bool) -> int:
    """The cluster of a chief."""
    with (
        closing(StatusClient(address, "dps status")) as asking,
        tell_if_slow(f"asks the chief at {address} and its ps"),
    ):
        chief = asking.ask_chief()
        ps = asking.ask_ps(chief)
    training = training_of(chief, ps)
    if as_json:
        table.print_json({"address": asking.address, **chief, "ps": ps, "training": training})
        return 0
    print(
        f"chief at {asking.address}: {chief['text']}; run epoch {chief['epoch']}; "
        f"last checkpoint {checkpoint_text(training)}"
    )
    for what in ("live", "waiting", "finished", "given_up"):
        names = sorted(chief[what], key=lambda name: (len(name), name))  # worker:2 before worker:10
        print(f"workers {what.replace('_', ' ')}: {', '.join(names) or 'none'}")
    if published := published_text(training):
        print(f"published: version {published}")
    if training["step"] is not None:
        print(f"training: {training_line(training)}")
    if training["why"]:
        print(f"why: {training['why']}")
    rows = []
    for task, values in ps.items():
        idle = values["state"] != "no answer" and "step" not in values and chief["phase"] == RUN
        size = f"{values.get('nbytes', 0) / 1e6:.1f}"
        rows.append({"ps": task, **values, "MB": size} | ({"state": "has no variables"} if idle else {}))
    print(table.text(PS_COLUMNS, rows))
    return 0
