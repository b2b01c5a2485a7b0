"""What `dps doctor` says of a machine, from files and environments made for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dps import cli
from dps.monitor import doctor, machine
from dps.process import config


def found(name: str) -> doctor.Finding:
    return next(finding for finding in doctor.findings() if finding.name == name)


@pytest.mark.parametrize(("text", "cpus"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("?", None)])
def test_the_cgroup_says_how_many_processors_it_gives(text: str, cpus: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert machine.cgroup_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", None), ("200000", 2.0)])
def test_the_older_cgroup_says_it_too(quota: str, cpus: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert machine.cgroup_cpus(tmp_path) == cpus


def test_a_limit_below_the_processors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cgroup_cpus", lambda: 0.5)
    assert "0.5 by the cgroup's limit" in found("processors").found and found("processors").advice


@pytest.mark.parametrize(("value", "advised"), [(10, True), (511, True), (512, False), (None, False)])
def test_a_short_queue_of_datagrams_comes_with_its_command(
    value: int | None, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "read_setting", lambda name: value)
    queue = found("max_dgram_qlen")
    assert queue.command == ("sudo sysctl -w net.unix.max_dgram_qlen=512" if advised else "")
    assert bool(queue.advice) == advised


def test_a_kernel_setting_is_read_by_its_sysctl_name(tmp_path: Path) -> None:
    (tmp_path / "net" / "unix").mkdir(parents=True)
    (tmp_path / "net" / "unix" / "max_dgram_qlen").write_text("10\n")
    assert machine.read_setting("net.unix.max_dgram_qlen", tmp_path) == 10
    assert machine.read_setting("net.core.rmem_max", tmp_path) is None


def test_the_mode_of_huge_pages_is_the_one_in_brackets(tmp_path: Path) -> None:
    file = tmp_path / "shmem_enabled"
    assert machine.shmem_huge_pages(file) == "unknown"
    file.write_text("always within_size advise [never] deny force\n")
    assert machine.shmem_huge_pages(file) == "never"


def test_kernels_that_are_not_compiled_yet_are_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "kernel_cache", lambda: (str(tmp_path), 0))
    assert found("kernels").command == "dps warm"
    monkeypatch.setattr(doctor, "kernel_cache", lambda: (None, 0))
    assert "NUMBA_CACHE_DIR" in found("kernels").command
    monkeypatch.setattr(doctor, "kernel_cache", lambda: (str(tmp_path), 7))
    assert found("kernels") == doctor.Finding("kernels", f"7 compiled kernels are kept in {tmp_path}")


def test_compiled_kernels_are_counted_where_numba_is_told_to_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels_1").mkdir()
    for name in ("a.nbi", "b.nbi", "b.1.nbc"):
        (tmp_path / "kernels_1" / name).touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert machine.kernel_cache() == (str(tmp_path), 2)


def test_malloc_is_left_to_an_environment_that_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for name, value in config.MALLOC.items():
        monkeypatch.setenv(name, str(value))
    assert found("malloc") == doctor.Finding("malloc", "large blocks are kept, by the environment")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    assert "dps leaves it so" in found("malloc").found and "MALLOC_TRIM_THRESHOLD_=1000" in found("malloc").found
    assert not found("malloc").advice


def test_unset_threads_come_with_the_command_that_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.THREADS:
        monkeypatch.setenv(name, "1")
    assert found("threads").advice == ""
    monkeypatch.delenv("MKL_NUM_THREADS")
    assert found("threads").command == "export MKL_NUM_THREADS=1"


def test_json_has_the_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert {"python", "malloc", "processors", "memory", "max_dgram_qlen", "open files"} <= {row["name"] for row in rows}
    assert all(set(row) == {"name", "found", "advice", "command", "wrong"} for row in rows)
    assert all(row["advice"] for row in rows if row["command"])
