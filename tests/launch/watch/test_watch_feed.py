"""What pages are sent: curves that are thinned, checkpoints, lines of log, the last figures of a run that is over."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from dps.launch.runs.times import utc
from dps.launch.watch import feed as feeds
from dps.launch.watch.feed import CURVES, Curves, PageFeed, json_ready
from dps.transport.clock import wall
from tests.launch.watch.readings import of_ps, reading, session


def feed_in(path: Path, lines: str = "") -> PageFeed:
    (path / "logs").mkdir()
    if lines:
        (path / "logs" / "worker.0.log").write_text(lines)
    return PageFeed(str(path))


def test_a_curve_of_a_long_run_has_few_points_evenly() -> None:
    curves = Curves(most=10)
    for at in range(1000):
        curves.add_point([float(at)])
    times = [float(point[0] or 0) for point in curves.points]
    assert 5 <= len(times) <= 10 and times[0] == 0 and times[-1] >= 800
    assert len({after - before for before, after in itertools.pairwise(times)}) == 1


def test_a_page_that_comes_late_has_all_and_one_that_reads_on_what_is_new(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    for step in (1, 2):
        feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, step, {})}))
    early = feed.updates(0.01)
    first = next(early)
    assert first and [point[1] for point in first["points"]] == [1, 2] and first["curves"] == CURVES
    assert next(early) is None  # silence
    feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, 3, {})}))
    news, late = next(early), next(feed.updates(1))
    assert news and [point[1] for point in news["points"]] == [3] and "curves" not in news
    assert late and [point[1] for point in late["points"]] == [1, 2, 3]


def test_after_thinning_a_page_gets_all_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_in(tmp_path)
    feed._curves = Curves(most=2)
    feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, 1, {})}))
    news = feed.updates(1)
    next(news)
    for step in (2, 3):
        feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, step, {})}))
    told = next(news)
    assert told and told["curves"] == CURVES and [point[1] for point in told["points"]] == [1, 3]


def test_checkpoints_are_collected_and_the_last_figures_stay(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    for saved in ("step-1", "step-1", "step-2"):
        feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {"worker:0": session(5)})}, saved=saved))
    feed.add_reading(reading(str(tmp_path), {}, state="FAILED"))
    told = feed.whole()
    assert [each["name"] for each in told["checkpoints"]] == ["step-1", "step-2"]
    assert told["is_over"] and told["status"]["training"] == {} and told["status"]["state"] == "FAILED"
    assert told["last"]["training"]["step"] == 5 and told["last"]["ps"]["0"]["version"] == 6
    assert len(told["points"]) == 3


def test_only_the_last_lines_are_read_and_without_their_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOG_LINES", 3)
    new, old = utc(wall()), utc(wall() - 7200)
    lines = [f"{old} old", *(f"{new} \x1b[31m</b>{number}\x1b[0m" for number in range(5)), f"{new} {'x' * 9000}"]
    feed = feed_in(tmp_path, "".join(f"{line}\n" for line in lines))
    feed.add_reading(reading(str(tmp_path), {}))
    assert [text for _, _, text in feed.whole()["lines"]] == ["</b>3", "</b>4", "x" * 2000]


def test_lines_of_a_run_that_ended_long_ago_are_there(tmp_path: Path) -> None:
    feed = feed_in(tmp_path, "2020-01-01T00:00:00.000Z the end\n")
    feed.add_reading(reading(str(tmp_path), {}, state="SUCCEEDED"))
    assert [text for _, _, text in feed.whole()["lines"]] == ["the end"]


def test_without_a_folder_of_logs_there_are_no_lines(tmp_path: Path) -> None:
    feed = PageFeed(str(tmp_path / "none"))
    assert feed.whole()["lines"] == []


def test_what_json_does_not_have_is_told_as_text(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    feed.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {})}, loss=math.nan))
    told = json.loads(json.dumps(feed.whole(), allow_nan=False))
    assert told["status"]["training"]["loss"] == "nan" and told["points"][0][2] is None
    assert json_ready({"a": [math.inf, (1.5, None, True)]}) == {"a": ["inf", [1.5, None, True]]}
