"""The page in headless Chromium: what it shows of made-up readings, of eight real tasks, and as a saved file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dps.launch.runs.reports import RunReports
from dps.launch.watch import page
from tests.launch.watch import watched
from tests.launch.watch.chromium import Tab, browsing, find_browser
from tests.launch.watch.readings import EVIL, of_ps, reading, serving, session
from tests.launch.watch.watched import STEPS, eight_tasks, status, watching

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_browser(), reason="no Chromium here; apt-get install chromium brings one"),
]
LIVE = "document.getElementById('link')?.className === 'live' && document.querySelectorAll('.tile').length > 0"

WIDTHS = """[...document.querySelectorAll('.lane svg')].map((lane) => [...lane.querySelectorAll('rect.computed')]
    .reduce((sum, part) => sum + Number(part.getAttribute('width')), 0))"""
"""How much of each lane is computing."""


@pytest.fixture
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browsing(tmp_path_factory.mktemp("chromium")) as made:
        made.show_as(1200, 900, dark=False)
        yield made
        assert made.errors == []


def tile(tab: Tab, name: str) -> str:
    """A figure in the head of the page."""
    found: str = tab.look(f"document.querySelector('[data-figure=\"{name}\"] b').textContent")
    return found


def rows(tab: Tab, table: str) -> list[list[str]]:
    """The cells of a table."""
    found: list[list[str]] = tab.look(
        f"[...document.querySelectorAll('#{table} tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return found


def told(path: str, step: int, **more: Any) -> Any:
    """A reading with times of two workers, of which the second is slow."""
    return reading(path, {"0": of_ps(1, step, {"worker:0": session(step), "worker:1": session(step)})}, **more)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> str:
    """Has readings tell times and a sentence, as `dps status --json` does where workers tell them."""
    from dps.launch.runs import status as of_status

    own, why = of_status.training_of, f"worker 1 is 4.0 times slower than the median {EVIL}"
    workers = {
        f"worker:{number}": {
            "steps": 9, "read_s": 0.1, "computed_s": 2.0, "moved_s": 0.0, "waited_s": 0.5,
            "recent": [[2, 0.02, 0.1 * slow, 0.0, 0.04]] * 8,
        }
        for number, slow in enumerate((1, 4))
    }  # fmt: skip
    monkeypatch.setattr(
        of_status, "training_of",
        lambda chief, ps: own(chief, ps) | {"workers": workers, "why": why, "waits": None, "published": [
            {"number": 3, "label": EVIL, "step": 40}]},
    )  # fmt: skip
    return why


def test_made_up_readings_are_shown_and_hostile_texts_stay_texts(tab: Tab, tmp_path: Path, times: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.0.log").write_text(f"2026-01-01T00:00:00.000Z {EVIL}\n", encoding="utf-8")
    with serving(str(tmp_path)) as server:
        for step in range(1, 6):
            server.feed.add_reading(told(str(tmp_path), step, loss=1 / step, name=EVIL, saved=f"step-{step} {EVIL}"))
        tab.go(server.make_url())
        tab.until(LIVE)
        assert tab.look("location.search") == "" and tab.look("document.cookie") == ""
        assert tile(tab, "step") == "5" and tile(tab, "loss") == "0.2" and tile(tab, "pushes/s") == "30"
        assert tab.look("document.getElementById('title').textContent").endswith(EVIL)
        assert tab.look("document.getElementById('why').textContent") == times
        assert EVIL.replace("\u2028", "") in tab.look("document.getElementById('log').textContent").replace(
            "\u2028", ""
        )
        assert tab.look("document.querySelectorAll('img, body script:not([type]):not(:last-of-type)').length") == 0
        assert rows(tab, "ps") == [["ps:0", "ready", "5", "6", "4.00 kB", "5", "1", "0"]]
        assert len(rows(tab, "saved")) == 5 and rows(tab, "published")[0][1] == EVIL
        widths = tab.look(WIDTHS)
        assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)
        for of in ("loss", "pushes_per_s", "staleness", "mean_staleness"):
            script = f"document.querySelector('path.curve[data-of={of}]')?.getAttribute('d') ?? ''"
            if of != "pushes_per_s":  # examples are known, and are shown in its place
                assert tab.look(script).count("L") == 4
        server.feed.add_reading(told(str(tmp_path), 6, loss=0.1))
        tab.until("document.querySelector('[data-figure=step] b').textContent === '6'")
        server.feed.add_reading(reading(str(tmp_path), {}, state="FAILED"))
        tab.until("!document.getElementById('ended').hidden")
        assert tab.look("document.getElementById('ended').textContent").startswith("The run has ended: FAILED")
        assert tile(tab, "step") == "6" and rows(tab, "ps")[0][2] == "6"
    tab.until("document.getElementById('link').textContent === 'dps watch does not answer'")
    tab.errors = [error for error in tab.errors if "ERR_CONNECTION_REFUSED" not in error and "events" not in error]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 1400])
def test_it_fits_narrow_and_wide_in_light_and_dark(
    tab: Tab, tmp_path: Path, times: str, width: int, dark: bool
) -> None:
    with serving(str(tmp_path)) as server:
        for step in (1, 2):
            server.feed.add_reading(told(str(tmp_path), step, name="n" * 90))
        tab.show_as(width, 900, dark)
        tab.go(server.make_url())
        tab.until(LIVE)
        assert tab.look("document.documentElement.scrollWidth") == width
        colour = tab.look("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour[4:-1].split(", "))) < 200) is dark
        assert tab.look("document.querySelectorAll('.lane svg').length") == 2


def test_a_second_browser_without_the_cookie_sees_nothing(tab: Tab, tmp_path: Path) -> None:
    with serving(str(tmp_path)) as server:
        server.feed.add_reading(told(str(tmp_path), 1, name="secret"))
        url = server.make_url()
        tab.go(url)
        tab.until(LIVE)
        own = tab.look("location.href")
        tab.call("Network.clearBrowserCookies")
        for address in (own, url, f"{own}save"):
            tab.go(address)
            tab.until("document.body?.textContent.startsWith('This needs the address')")
            assert "secret" not in tab.look("document.documentElement.textContent")
    tab.errors = [error for error in tab.errors if "403" not in error]


def test_the_address_works_from_a_link_of_another_site_but_its_requests_do_not(tab: Tab, tmp_path: Path) -> None:
    with serving(str(tmp_path)) as server:
        server.feed.add_reading(told(str(tmp_path), 1))
        tab.go(f"data:text/html,<script>location = '{server.make_url()}'</script>")
        tab.until(LIVE)
        own = tab.look("location.href")
        tab.go("data:text/html,<p>elsewhere</p>")
        tab.until("document.body?.textContent === 'elsewhere'")
        script = f"fetch('{own}save', {{credentials: 'include', mode: 'no-cors'}}).then((a) => a.type, () => 'refused')"
        assert tab.look(script) in ("opaque", "refused")  # it may ask, and sees nothing
        assert (
            tab.look(f"fetch('{own}save', {{credentials: 'include'}}).then(() => 'read', () => 'refused')") == "refused"
        )
    tab.errors = [
        error for error in tab.errors if "403" not in error and "CORS" not in error and "ERR_FAILED" not in error
    ]


def test_a_chief_that_does_not_answer_leaves_the_last_figures_with_the_reason(tab: Tab, tmp_path: Path) -> None:
    with serving(str(tmp_path)) as server:
        server.feed.add_reading(told(str(tmp_path), 4))
        silent = reading(str(tmp_path), {})
        server.feed.add_reading(RunReports(silent.view, {}, {}, "no chief answered at <b>x</b> for 2 s"))
        tab.go(server.make_url())
        tab.until(LIVE)
        said = tab.look("document.getElementById('ended').textContent")
        assert said == "The figures of the training are the last ones: no chief answered at <b>x</b> for 2 s"
        assert tile(tab, "step") == "4" and tab.look("document.getElementById('why').hidden")


def test_a_run_that_was_over_before_has_its_end_its_tasks_and_its_log(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.0.log").write_text("2020-01-01T00:00:00.000Z the last line\n")
    with serving(str(tmp_path)) as server:
        server.feed.add_reading(reading(str(tmp_path), {}, state="LOST"))
        tab.go(server.make_url())
        tab.until("document.getElementById('link')?.className === 'live'")
        tab.until("document.getElementById('ended').textContent.startsWith('The run has ended: LOST')")
        assert "Nobody watched it" in tab.look("document.getElementById('ended').textContent")
        assert (
            tab.look("document.getElementById('charts').hidden")
            and [row[1] for row in rows(tab, "tasks")] == ["LOST"] * 4
        )
        assert "the last line" in tab.look("document.getElementById('log').textContent")


def test_a_saved_page_opens_without_a_server_and_asks_for_nothing(tab: Tab, tmp_path: Path, times: str) -> None:
    with serving(str(tmp_path)) as server:
        for step in range(1, 4):
            server.feed.add_reading(told(str(tmp_path), step, name=EVIL))
        saved = page.saved_page(server.feed.whole())
    (tmp_path / "saved.html").write_text(saved, encoding="utf-8")
    tab.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    tab.go((tmp_path / "saved.html").as_uri())
    tab.until("document.getElementById('link')?.textContent.startsWith('saved at ')")
    assert tile(tab, "step") == "3" and tab.look("document.getElementById('save').hidden")
    assert tab.look("document.querySelectorAll('path.curve').length") == 4
    assert tab.look("document.getElementById('why').textContent") == times
    assert tab.look("performance.getEntriesByType('resource').map((each) => each.name)") == []


def test_eight_real_tasks_have_the_figures_of_dps_status(tab: Tab, tmp_path: Path) -> None:
    with eight_tasks(tmp_path), watching(tmp_path, "1") as (_, url, _lines):
        tab.go(url)
        tab.until(LIVE)
        tab.until(f"document.querySelector('[data-figure=step] b').textContent === '{5 * STEPS}'")
        tab.until("document.querySelector('[data-figure=loss] b').textContent === '0.25'")
        of_status = status(tmp_path)
        shown = {row[0]: row for row in rows(tab, "ps")}
        assert shown.keys() == {"ps:0", "ps:1"}
        for index, values in of_status["ps"].items():
            row = shown[f"ps:{index}"]
            assert row[1] == values["state"] and row[2:4] == [str(values["step"]), str(values["version"])]
            assert row[5:] == [str(values["applied"]), str(values["dropped"]), str(values["refused"])]
        tasks = {row[0]: row for row in rows(tab, "tasks")}
        assert {name: row[1] for name, row in tasks.items()} == {
            name: task["state"] for name, task in of_status["tasks"].items()
        }
        assert len(tasks) == 8 and tab.look("document.querySelectorAll('.lane:not(.first)').length") == 5
        assert "</b> has pushed" in tab.look("document.getElementById('log').textContent")
        (tmp_path / "go").touch()
        tab.until("document.getElementById('ended').textContent.startsWith('The run has ended: SUCCEEDED')")
        assert tile(tab, "step") == str(5 * STEPS)
        watched.until(lambda: status(tmp_path)["state"] == "SUCCEEDED")
        ended = {name: task["state"] for name, task in status(tmp_path)["tasks"].items()}
        assert {row[0]: row[1] for row in rows(tab, "tasks")} == ended and ended["worker:4"] == "SUCCEEDED"
    tab.until("document.getElementById('link').textContent === 'dps watch does not answer'")
    tab.errors = [error for error in tab.errors if "ERR_CONNECTION_REFUSED" not in error and "events" not in error]
