"""Summaries: what is in a row, who writes, and what becomes of disks that cannot be written to."""

from __future__ import annotations

import itertools
import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dps
from dps.checkpoint import MemoryStorage
from dps.errors import ConfigError
from dps.hooks.event_file import EventFile, Histogram
from dps.hooks.gradient_norms import GradientNorms, norm
from dps.transport.sim import Kill
from dps.transport.sim.world import DiskFull
from tests.hooks.events import crc32c, events
from tests.hooks.loops import EXACT, loop, ones, session
from tests.in_process import cluster

FILE = "log/summaries.jsonl"


def rows(storage: Any, path: str = FILE) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, read strictly: NaN is no JSON."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in bytes(storage.read(path)).decode().splitlines()]


def simulated(*arguments: Any, **world: Any) -> tuple[dps.launch.commands.simulate.SimulatedRun, MemoryStorage]:
    storage = MemoryStorage()
    return dps.simulate(*arguments, storage=storage, **{**EXACT, **world}), storage


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged; caplog does not see the simulator's tasks."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dps").addHandler(handler)
    yield texts
    logging.getLogger("dps").removeHandler(handler)


# -- rows ---------------------------------------------------------------------------------------------------------


def test_a_row_comes_after_the_first_push_and_then_every_so_many_steps() -> None:
    run, storage = simulated(loop, 6, [dps.SummarySaver("log", steps=2, batch=8)], [0.5, 1, 2, 3, 4, math.nan])
    assert not run.errors
    started, *found = rows(storage)
    assert (started["event"], started["step"], started["worker"]) == ("started", 0, "worker:0")
    assert [(row["step"], row["loss"]) for row in found] == [(1, 0.5), (3, 2.0), (5, 4.0)]
    assert set(found[0]) == {"wall_time", "step", "worker", "loss", "staleness", "accepted"}
    assert all((row["worker"], row["staleness"], row["accepted"]) == ("worker:0", 0, True) for row in found)
    for before, row in itertools.pairwise(found):  # a push takes a second: two steps of 8 examples
        assert row["steps_per_s"] == pytest.approx(1.0, rel=0.01)
        assert row["examples_per_s"] == pytest.approx(8.0, rel=0.01)
        assert row["wall_time"] - before["wall_time"] == pytest.approx(2.0, rel=0.01)


def test_rows_may_come_by_the_clock() -> None:
    _, storage = simulated(loop, 8, [dps.SummarySaver("log", seconds=2.5)])
    assert [row["step"] for row in rows(storage)[1:]] == [1, 4, 7]


def test_what_is_no_finite_number_is_null_and_a_push_without_a_loss_too() -> None:
    losses: Any = [math.nan, math.inf, None]
    _, storage = simulated(loop, 3, [dps.SummarySaver("log", steps=1)], losses)
    assert [row["loss"] for row in rows(storage)[1:]] == [None, None, None]


def test_the_newest_value_of_each_scalar_that_is_new_is_in_the_next_row_of_every_hook(said: list[str]) -> None:
    def train(server: Any) -> None:
        hooks = [dps.SummarySaver("log", steps=2), dps.SummarySaver("other", steps=1), dps.LogMetrics(steps=2)]
        with session(server, hooks) as s:
            for index in range(5):
                if index < 4:
                    s.summary("eval/accuracy", index / 10)
                if index == 0:
                    s.summary("once", 7)
                s.push(ones())

    logger = logging.getLogger("dps")
    level = logger.level
    logger.setLevel("INFO")
    try:
        run, storage = simulated(train)
    finally:
        logger.setLevel(level)
    assert not run.errors
    wanted = [{"eval/accuracy": 0.0, "once": 7.0}, {"eval/accuracy": 0.2}, {"eval/accuracy": 0.3}]
    names = ("eval/accuracy", "once")
    found = [{name: row[name] for name in names if name in row} for row in rows(storage)[1:]]
    assert found == wanted
    each = [row.get("eval/accuracy") for row in rows(storage, "other/summaries.jsonl")[1:]]
    assert each == [0.0, 0.1, 0.2, 0.3, None]
    assert any(text == "worker:0: step 1, eval/accuracy 0, once 7, staleness 0" for text in said)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss", 1, "got the name 'loss'"),
        ("", 1, "got the name ''"),
        ("a", "much", "got 'much' for a"),
        ("a", [1], "a"),
        ("a\nb", 1, r"got the name 'a\\nb', wanted text in one line"),
        (" ", 1, "got the name ' '"),
        ("a\0", 1, "got the name"),
        ("\ud800", 1, "got the name"),
        ("a\u2028b", 1, "got the name"),
        (b"a", 1, "got the name b'a'"),
        (["a"], 1, "got the name"),
        ("hparams", 1, "got the name 'hparams'"),  # the row of the start has a dict there
        pytest.param("a", 10**400, "got a whole number that no float can represent for a", id="too large"),
        ("a", np.array("1"), "wanted a number"),
    ],
)
def test_scalars_that_make_no_sense_are_told(name: str, value: Any, words: str) -> None:
    with cluster(1, 1, "inproc") as (server,), session(server) as s, pytest.raises(ValueError, match=words):
        s.summary(name, value)


def test_a_writer_refuses_names_and_folders_that_no_file_can_have(tmp_path: Path) -> None:
    summaries = dps.SummaryWriter(tmp_path, tensorboard=True)
    for name in ("", "a\nb", "\ud800", "hparams", "worker"):
        with pytest.raises(ConfigError, match="summary: got the name"):
            summaries.write(1, **{name: 1.0})
    for directory in ("", b"logs", "a\0b", None, 3):
        with pytest.raises(ConfigError, match="SummaryWriter: got directory=.*wanted the path of a folder"):
            dps.SummaryWriter(directory)  # type: ignore[arg-type]
    for name in ("", "a/b", "\n", 3):
        with pytest.raises(ConfigError, match="SummaryWriter: got name="):
            dps.SummaryWriter(tmp_path, name)  # type: ignore[arg-type]
    summaries.write(1, **{"Genauigkeit in %, 精度": 0.5, "loss": 1})
    (line,) = (tmp_path / "summaries.jsonl").read_text().splitlines()
    assert json.loads(line)["Genauigkeit in %, 精度"] == 0.5


@pytest.mark.parametrize(
    "step", [1.5, 2.0, math.nan, True, np.True_, "7", None, 1 << 63, np.array(2.5), np.ones(2, int)]
)
def test_a_writer_refuses_a_step_that_is_no_whole_number(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ConfigError, match="summary: got step=.*wanted a whole number of 64 bits") as told:
        dps.SummaryWriter(tmp_path).write(step, a=1.0)
    assert "\n" not in str(told.value) and not list(tmp_path.iterdir())


def test_a_writer_takes_whole_numbers_of_numpy_and_steps_in_any_order_as_tensorboard_does(tmp_path: Path) -> None:
    summaries = dps.SummaryWriter(tmp_path, tensorboard=True)
    given: list[Any] = [np.int64(7), np.uint8(3), np.array(5), -1]
    for step in given:
        summaries.write(step, a=math.nan, b=1e300)
    assert [row["step"] for row in map(json.loads, (tmp_path / "summaries.jsonl").read_text().splitlines())] == given
    (file,) = tmp_path.glob("events.*")
    found = [event for event in events(file) if event.summary.value]
    assert [event.step for event in found] == given
    assert all(math.isnan(event.summary.value[0].simple_value) for event in found)


# -- who writes, and where ------------------------------------------------------------------------------------------


def test_only_the_session_that_leads_writes_and_the_next_one_goes_on_in_its_file() -> None:
    def train(server: Any) -> None:
        loop(server, 4 if server.task == 0 else 8, [dps.SummarySaver("log", steps=1)])

    _, storage = simulated(train, workers=2)
    found = [row for row in rows(storage) if "event" not in row]
    by = {name: [row["step"] for row in found if row["worker"] == name] for name in ("worker:0", "worker:1")}
    assert len(by["worker:0"]) == 4 and by["worker:1"] == [9, 10, 11, 12]
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)


def test_with_a_switch_every_worker_writes_a_file_of_its_own() -> None:
    def train(server: Any) -> None:
        loop(server, 3, [dps.SummarySaver("log", steps=1, all_workers=True)])

    _, storage = simulated(train, workers=2, update="sync")
    for task in range(2):
        found = rows(storage, f"log/worker-{task}/summaries.jsonl")
        assert [(row["worker"], row["step"]) for row in found] == [(f"worker:{task}", step) for step in (0, 1, 2, 3)]
    assert storage.names("log") == ["worker-0", "worker-1"]


def test_the_directory_is_the_runs_checkpoint_dir_unless_another_is_given(tmp_path: Path) -> None:
    with cluster(1, 1, "inproc") as (server,):
        loop(server, 2, [dps.SummarySaver(steps=1)], checkpoint_dir=tmp_path / "run")
    assert len((tmp_path / "run" / "summaries.jsonl").read_text().splitlines()) == 3
    told = "SummarySaver has no directory and the run no checkpoint_dir"
    with cluster(1, 1, "inproc") as (server,), pytest.raises(ConfigError, match=told):
        session(server, [dps.SummarySaver()])


def test_a_run_that_is_started_again_adds_to_the_file(tmp_path: Path) -> None:
    for steps in (2, 4):
        with cluster(1, 1, "inproc", owned=False) as (server,):
            hooks = [dps.SummarySaver(steps=1), dps.StopAtStep(last_step=steps)]
            loop(server, 9, hooks, checkpoint_dir=tmp_path)
    lines = (tmp_path / "summaries.jsonl").read_text().splitlines()
    found = [(row["step"], row.get("event")) for row in map(json.loads, lines)]
    assert found == [(0, "started"), (1, None), (2, None), (2, "started"), (3, None), (4, None)]


def test_a_rollback_is_an_event_and_rows_go_on_from_there() -> None:
    def train(server: Any) -> None:
        hooks = [dps.SummarySaver("log", steps=1), dps.CheckpointSaver(steps=3), dps.StopAtStep(last_step=7)]
        loop(server, 99, hooks, checkpoint_dir="run")

    run, storage = simulated(train, ps=2, faults=[Kill("ps:0", at=5.5, restart_after=1.0)])
    assert not run.errors
    found = rows(storage)
    (at,) = [index for index, row in enumerate(found) if row.get("event") == "rolled back"]
    back = found[at]
    assert back["lost"] == found[at - 1]["step"] - back["step"] > 0
    assert [row["step"] for row in found[at + 1 :]] == list(range(back["step"] + 1, 8))


# -- disks --------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_when_it_begins_one_when_it_ends_and_training_goes_on(said: list[str]) -> None:
    run, storage = simulated(loop, 9, [dps.SummarySaver("log", steps=1)], faults=[DiskFull(at=3.5, seconds=3.0)])
    assert run.results == [9] and not run.errors
    steps = [row["step"] for row in rows(storage)[1:]]
    first = next(step for step in range(1, 10) if step not in steps)
    assert len(steps) == 6 and steps == [*range(1, first), *range(first + 3, 10)]
    told = [text for text in said if "summaries" in text]
    assert len(told) == 2
    assert f"worker:0: no summaries from step {first} on: cannot append to {FILE}: No space left" in told[0]
    assert told[1] == f"worker:0: summaries are written again from step {first + 3} on"


def test_a_directory_that_cannot_be_made_is_one_line_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with cluster(1, 1, "inproc") as (server,):
        assert loop(server, 4, [dps.SummarySaver(str(tmp_path / "file" / "log"), steps=1, tensorboard=True)]) == 4
    told = [text for text in caplog.messages if "no summaries" in text]
    assert len(told) == 1 and "choose another directory" in told[0] and "\n" not in told[0]


# -- TensorBoard --------------------------------------------------------------------------------------------------


def test_the_readers_checksum_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 has others; this is the catalogued check value
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_event_files_hold_the_same_numbers_and_make_tensorboard_forget_what_was_undone(tmp_path: Path) -> None:
    with (
        cluster(1, 1, "inproc") as (server,),
        session(server, [dps.SummarySaver(str(tmp_path), steps=2, tensorboard=True)], checkpoint_dir=tmp_path) as s,
    ):
        name = ""
        for index in range(5):
            s.summary("eval/accuracy", 0.25 * index)
            s.push(ones(), loss=float(index))
            name = name or s.save()
        s.restore(name)
    (path,) = tmp_path.glob("events.out.tfevents.*.worker-0")
    version, started, *found, back = events(path)
    assert version.file_version == "brain.Event:2"
    assert (started.session_log.status, started.step) == (started.session_log.START, 0)
    assert (back.session_log.status, back.step) == (back.session_log.START, 1)
    values = [{v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")} for event in found]
    assert [event.step for event in found] == [1, 3, 5]
    assert values[0] == {"loss": 0.0, "staleness": 0.0, "eval/accuracy": 0.0}
    assert [v["loss"] for v in values] == [0.0, 2.0, 4.0] and [v["eval/accuracy"] for v in values] == [0.0, 0.5, 1.0]
    assert all(v["steps_per_s"] > 0 for v in values[1:])
    json_rows = [json.loads(line) for line in (tmp_path / "summaries.jsonl").read_text().splitlines()]
    assert [event.wall_time for event in (started, *found, back)] == pytest.approx([r["wall_time"] for r in json_rows])


def test_without_tensorboardx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"pip install 'dps\[tensorboard\]'"):
        dps.SummarySaver("log", tensorboard=True)
    with pytest.raises(ConfigError, match=r"dps\[tensorboard\]"):
        EventFile(MemoryStorage(), "log/events")


# -- TensorBoard's own reader ---------------------------------------------------------------------------------------


ALL = {"scalars": 0, "histograms": 0, "compressedHistograms": 0}
"""The reader keeps every event, not a sample of them."""


def simulated_events(tmp_path: Path, *hooks: dps.Hook, pushes: int = 5) -> Path:
    """The folder with the event file of a run that pushes gradients of norms 0, 5, 10, ... and restarts nothing."""

    def train(server: Any) -> None:
        with session(server, list(hooks)) as s:
            for index in range(pushes):
                s.push({"a": np.array([3.0, 4.0]) * index}, loss=float(index))

    run, _ = simulated(train)
    assert not run.errors
    run.save(tmp_path)
    return tmp_path / "log"


def test_tensorboards_reader_gives_back_scalars_histograms_and_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    hparams = {"rate": 0.5, "layers": 3, "nesterov": True, "model": "wide", "data": Path("mnist"), "decay": None}
    saver = dps.SummarySaver("log", steps=2, tensorboard=True, hparams=hparams)
    read = EventAccumulator(str(simulated_events(tmp_path, saver)), ALL)
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(1, 0.0), (3, 2.0), (5, 4.0)]
    first, second, third = [e.histogram_value for e in read.Histograms("pushes/gradient_norm")]
    assert (first.num, first.max) == (1, 0.0)
    assert (second.num, second.min, second.max, second.sum, second.sum_squares) == (2, 5.0, 10.0, 15.0, 125.0)
    assert (third.num, third.min, third.max, third.sum) == (2, 15.0, 20.0, 35.0)
    for found in (first, second, third):
        assert sum(found.bucket) == found.num and sorted(found.bucket_limit) == list(found.bucket_limit)
    assert [e.histogram_value.num for e in read.Histograms("pushes/staleness")] == [1, 2, 2]
    (content,) = read.PluginTagToContent("hparams").values()
    kept = parse_session_start_info_plugin_data(content).hparams
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in kept.items()} == {
        "rate": 0.5, "layers": 3.0, "nesterov": True, "model": "wide", "data": "mnist", "decay": "None",
    }  # fmt: skip
    assert kept["nesterov"].WhichOneof("kind") == "bool_value"


def test_the_hparams_page_of_tensorboard_shows_the_runs_own_folder_with_its_metrics(tmp_path: Path) -> None:
    """Through the plugin's own server side: one session group for the folder, with the last loss."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, list_session_groups
    from tensorboard.plugins.hparams.backend_context import Context

    saver = dps.SummarySaver("log", steps=2, tensorboard=True, hparams={"rate": 0.5})
    simulated_events(tmp_path, saver)
    files = EventMultiplexer()
    files.AddRunsFromDirectory(str(tmp_path))
    files.Reload()
    provider = MultiplexerDataProvider(files, str(tmp_path))
    assert sorted(provider.list_tensors(RequestContext(), experiment_id="", plugin_name="histograms")["log"]) == [
        "pushes/gradient_norm", "pushes/staleness",
    ]  # fmt: skip
    backend = Context(TBContext(logdir=str(tmp_path), data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=10, allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING]
    )
    (group,) = list_session_groups.Handler(RequestContext(), backend, "", request).run().session_groups
    assert (group.name, group.hparams["rate"].number_value) == ("log", 0.5)
    losses = [m for m in group.metric_values if m.name.tag == "loss"]
    assert [(m.training_step, m.value) for m in losses] == [(5, 4.0)]


def test_a_rollback_takes_back_the_histograms_of_what_it_undid_and_counts_anew(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def train(server: Any) -> None:
        hooks = [dps.SummarySaver("log", steps=1, tensorboard=True), dps.CheckpointSaver(steps=3)]
        loop(server, 99, [*hooks, dps.StopAtStep(last_step=7)], checkpoint_dir="run")

    run, _ = simulated(train, ps=2, faults=[Kill("ps:0", at=5.5, restart_after=1.0)])
    assert not run.errors
    run.save(tmp_path)
    read = EventAccumulator(str(tmp_path / "log"), ALL)
    read.Reload()
    steps = [event.step for event in read.Histograms("pushes/gradient_norm")]
    assert steps == sorted(set(steps)) and steps[-1] == 7
    assert all(event.histogram_value.max == math.sqrt(2) for event in read.Histograms("pushes/gradient_norm"))


def test_hyperparameters_are_in_the_row_of_the_start(tmp_path: Path) -> None:
    _, storage = simulated(loop, 1, [dps.SummarySaver("log", steps=1, hparams={"rate": 0.5, "most": math.inf})])
    started, row = rows(storage)
    assert started["hparams"] == {"rate": 0.5, "most": None} and "hparams" not in row


@pytest.mark.parametrize("name", ["a\nb", "a\0", "\ud800", " "])
def test_a_name_of_a_hyperparameter_that_files_cannot_have_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match="SummarySaver: got the name .* in hparams, wanted text in one line"):
        dps.SummarySaver("log", hparams={"rate": 1, name: 2})


def test_a_hyperparameter_that_files_cannot_have_is_written_out(tmp_path: Path) -> None:
    given = {"path": "/data/\udcff", "seed": 10**400, "shape": np.array([1, 2]), "many": -(2**200)}
    with cluster(1, 1, "inproc") as (server,):
        loop(server, 1, [dps.SummarySaver(str(tmp_path), tensorboard=True, hparams=given)])
    started = json.loads((tmp_path / "summaries.jsonl").read_text().splitlines()[0])
    assert started["hparams"] == {"path": "/data/\\udcff", "seed": str(10**400), "shape": "[1 2]", "many": -(2**200)}


@pytest.mark.parametrize("given", [[("rate", 1)], {1: 2}, {"": 1}, "rate"])
def test_hyperparameters_that_are_no_dict_by_name_are_told(given: Any) -> None:
    with pytest.raises(ConfigError, match="SummarySaver: got hparams=.*wanted a dict of values by name"):
        dps.SummarySaver("log", hparams=given)


# -- histograms and norms -------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e30), st.integers(0, 50), st.sampled_from([math.nan, math.inf, -1.0]))))
def test_each_number_of_a_histogram_is_in_the_bucket_that_holds_it(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    kept = [value for value in values if 0 <= value < math.inf]
    assert histogram.count == len(kept)
    if not kept:
        return
    found = histogram.to_proto()
    assert (found.num, found.min, found.max) == (len(kept), min(kept), max(kept))
    assert found.sum == pytest.approx(math.fsum(kept))
    limits = [0.0, *found.bucket_limit]
    assert limits == sorted(set(limits))
    for low, high, count in zip(limits, limits[1:], found.bucket, strict=False):
        margin = 1e-9  # a value at a limit may be counted on either side of it
        least = sum(low * (1 + margin) < value < high * (1 - margin) for value in kept)
        most = sum(low * (1 - margin) <= value <= high * (1 + margin) for value in kept)
        assert least <= count <= most
        assert high <= low * 1.1 * (1 + margin) or count == 0 or low == 0.0


def test_a_norm_is_that_of_all_elements_in_each_form_of_gradient() -> None:
    strided = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    found = norm([np.float64(2.0), strided, dps.Rows([4, 1], np.full((2, 3), 0.5)), np.ones((2, 2), np.float16)])
    assert found == pytest.approx(math.sqrt(4 + (strided**2).sum() + 6 * 0.25 + 4))
    assert math.isnan(norm([np.array([math.nan])])) and norm([np.array([math.inf])]) == math.inf
    assert norm([np.full(4, 1e4, np.float16)]) == 2e4


def test_norms_take_a_fiftieth_of_the_time_at_most_and_none_is_of_nothing() -> None:
    clock, found = itertools.count(), []
    norms = GradientNorms(found.append, lambda: float(next(clock)))  # each reading of the clock is a second later
    for _ in range(100):
        norms.measure([np.ones(1)])
    assert len(found) == 2  # the first one takes a second, and 50 s later comes the second
    GradientNorms(found.append, lambda: 0.0).measure([])
    assert len(found) == 2


def test_a_model_without_ps_has_histograms_of_its_gradients_too(tmp_path: Path) -> None:
    model = dps.nn.Sequential([dps.nn.Dense(1)])
    model.compile(optimizer=dps.optim.SGD(0.01), loss="mse")
    x = np.ones((8, 2), np.float32)
    saver = dps.SummarySaver(str(tmp_path), steps=1, tensorboard=True)
    model.fit(x, x[:, :1], epochs=1, batch_size=4, callbacks=[saver], verbose=0)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    (first, *_) = [v for event in events(path) for v in event.summary.value if v.tag == "pushes/gradient_norm"]
    assert first.histo.num == 1 and first.histo.max > 0


def test_the_sums_of_fit_are_no_gradients_and_a_watch_from_before_sees_all_pushes() -> None:
    class Before:
        seen: list[Any]

        def __init__(self) -> None:
            self.seen = []

        def pulled(self, tree: Any) -> None:
            self.seen.append(tree)

        def pushed(self, plan: Any, gradients: Any) -> bool:
            self.seen.append(dict(gradients))
            return len(self.seen) == 3

    before, found = Before(), []
    plan = SimpleNamespace(by_name={"w": 0, "training_totals": 1})
    norms = GradientNorms(found.append, lambda: 0.0, before)
    norms.pulled("values")
    for _ in range(3):
        assert not norms.pushed(plan, {0: np.array([3.0, 4.0]), 1: np.full(9, 1e9)})
    assert found == [5.0] * 3 and [type(seen) for seen in before.seen] == [str, dict, dict]
