"""The run beside peers: which figures count, what is said of goals; and dps in the peers' shape of figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import run
from dps.process.config import MALLOC

ROOT = Path(run.__file__).parents[2]


def line(number: int, probe_s: float, system: str, variant: str, **medians: float) -> dict[str, Any]:
    results = {key: {"median_s": median} for key, median in medians.items()}
    return {"round": number, "probe_s": probe_s, "system": system, "variant": variant, "results": results}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [
        {"cores": 2},
        {"note": "ray is left out: no such package"},
        line(1, 1.0, "dps", "", w3_sgd=0.01, w5_small=0.001),
        line(2, 1.1, "dps", "", w3_sgd=0.02),
        line(3, 1.5, "dps", "", w3_sgd=9.0),
        line(1, 1.0, "torch", "", w3_sgd=0.06),
        line(1, 1.0, "torch", "gloo", w5_small=0.001),
        {"round": 2, "job": "torch w1", "error": "out of memory"},
    ]
    path = tmp_path / "peers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_a_figure_is_the_median_of_the_rounds_in_which_the_machine_was_steady(file: Path) -> None:
    seconds, notes = run.read(file)
    assert seconds["dps", "w3_sgd"] == pytest.approx(0.015)
    assert seconds["torch gloo", "w5_small"] == 0.001
    assert notes == [
        "ray is left out: no such package",
        "round 2: torch w1 failed: out of memory",
        "round 3 dropped: raw TCP had moved by 50%",
    ]
    assert run.steady(file) == 2


def test_a_round_is_dropped_with_all_systems_in_it(tmp_path: Path) -> None:
    lines = [
        line(1, 1.0, "dps", "", w3_sgd=0.01),
        line(1, 1.0, "torch", "", w3_sgd=0.06),
        line(2, 1.0, "dps", "", w3_sgd=0.05),
        line(2, 1.4, "torch", "", w3_sgd=0.05),
    ]
    path = tmp_path / "peers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert run.read(path)[0] == {("dps", "w3_sgd"): 0.01, ("torch", "w3_sgd"): 0.06}


def test_where_no_round_is_steady_the_medians_of_all_are_shown_and_it_is_said(tmp_path: Path) -> None:
    lines = [line(1, 1.0, "dps", "", w3_sgd=0.01), line(1, 2.0, "ray", ""), line(2, 9.0, "dps", "", w3_sgd=0.05)]
    path = tmp_path / "peers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    seconds, notes = run.read(path)
    assert seconds == {("dps", "w3_sgd"): pytest.approx(0.03)}
    assert notes == ["raw TCP moved by over 30 % in each round, so none counts; shown are the medians of all"]


def test_each_round_begins_with_other_systems_and_leaves_none_out() -> None:
    rounds = [run.in_turn(run.JOBS, number, 3) for number in (1, 2, 3, 4)]
    assert all(sorted(job.name for job in jobs) == sorted(job.name for job in run.JOBS) for jobs in rounds)
    assert len({jobs[0].name for jobs in rounds[:3]}) == 3
    assert rounds[3] == rounds[0]


def test_a_job_with_the_malloc_settings_of_dps_says_so_in_its_name() -> None:
    given = {"system": "torch", "variant": "tcp", "results": {}}
    kept, plain = (run.Job("torch", "torch_peer.py", "w1", variant="tcp", malloc=malloc) for malloc in (True, False))
    assert (kept.described(given)["variant"], kept.described(given)["malloc"]) == ("tcp malloc", "keeps large blocks")
    assert (plain.described(given)["variant"], plain.described(given)["malloc"]) == ("tcp", "as it comes")
    assert {name: kept.environ("1", "4k").get(name) for name in MALLOC} == {k: str(v) for k, v in MALLOC.items()}
    assert not MALLOC.keys() & plain.environ("1", "4k").keys()
    assert plain.environ("1", "4k")["OMP_NUM_THREADS"] == "1"


def test_ray_has_namespaces_of_its_own_where_these_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = [job for job in run.JOBS if job.peer == "ray"]
    for reason, prefix in (("", run.ALONE), ("not permitted", [])):
        monkeypatch.setattr(run, "cannot_be_alone", lambda reason=reason: reason)
        for job in jobs:
            command = job.command(tmp_path, tmp_path / "out")
            assert command[: len(prefix)] == prefix
            assert command[len(prefix)].endswith("ray/bin/python")


def test_no_ratio_is_shown_twice_under_one_name() -> None:
    shown = [(ratio.work, ratio.peer) for ratio in run.RATIOS]
    assert len(set(shown)) == len(shown)


def test_a_ratio_without_a_goal_is_shown_as_one() -> None:
    seconds = {("dps socket", "w4_repeated_pull"): 1.0, ("torch tcp", "w4_repeated_pull"): 2.5}
    (found,) = (text for text in run._ratios(seconds) if text.startswith("W4 pull, repeated") and "2.50" in text)
    assert found.split()[-2:] == ["2.50", "-"]


def test_ratios_stand_beside_what_is_wanted(file: Path) -> None:
    lines = run.table(file).splitlines()
    (holds,) = (found for found in lines if found.startswith("W3 resnet, same host, copied") and "torch" in found)
    assert holds.split()[-3:] == ["4.00", "3.5", "holds"]
    (short,) = (found for found in lines if found.startswith("W5 small") and "gloo" in found)
    assert "1.00" in short and "short by 50%" in short
    assert any("no figure of ray" in found for found in lines)


def test_a_peer_whose_environment_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "python"
    refusing.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(refusing))
    assert run.environment("ray", tmp_path) == "no such package"
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "ready").touch()
    assert run.environment("made", tmp_path) == ""


@pytest.mark.nightly
def test_dps_gives_the_peers_shape_of_figures() -> None:
    own = {"PEER_TIME": "0.001", "PEER_SIZES": "4k", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "dps_peer.py"), "--cases", "w1,w2"]
    done = subprocess.run(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, check=True)
    copied, in_place = map(json.loads, done.stdout.splitlines())
    assert [copied["variant"], in_place["variant"]] == ["", "inplace"]
    for found in (copied, in_place):
        assert found["system"] == "dps"
        assert list(found["results"]) == ["w1_4k", "w2_sgd_4k", "w2_adagrad_4k"]
        for figure in found["results"].values():
            assert figure["n"] >= 5
            assert 0 < figure["min_s"] <= figure["median_s"] <= figure["max_s"]
            assert figure["GBps"] == pytest.approx(4096 / figure["median_s"] / 1e9)
