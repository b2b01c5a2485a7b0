"""`dps bench --calibrate`: lines over sizes, what is beside others' work, and one real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dps.cli import main
from dps.monitor import calibrating
from dps.monitor.calibrating import PULL, PUSH, RESTED, Sized
from dps.monitor.costs import Costed, Sample, medians
from dps.monitor.works import nbytes
from dps.transport.sim import Calibration

UPDATE_BYTE_S = 1e-10


def cost(worker_s: float, ps_s: float, p50_s: float) -> Costed:
    return {"worker_s": worker_s, "ps_s": ps_s, "p50_s": p50_s, "per_s": 1 / p50_s, "others_cores": 0.1}


def sized(size: str) -> Sized:
    """300 us and 0.2 ns/B of a worker, 400 us and 0.5 ns/B of a ps, of which a tenth overlaps."""
    n = nbytes(size)
    worker, ps = 300e-6 + 2e-10 * n, 400e-6 + 5e-10 * n
    push = cost(worker, ps, 0.9 * (worker + ps))
    rests = {
        load: cost(worker + more, ps + more, push["p50_s"]) for load, more in zip(RESTED, (2e-5, 9e-5), strict=True)
    }
    return Sized(n, {PUSH: push, PULL: cost(1e-4 + 3e-10 * n, 2e-4 + 4e-10 * n, 1e-3), **rests})


SIZES = [sized(size) for size in calibrating.SIZES]
SPREAD = cost(300e-6 + 2e-10 * nbytes("small") + 3 * 100e-6, 0.0, 1e-3)


def test_costs_are_lines_over_the_size() -> None:
    found = calibrating.fitted("here", {"sockets": SIZES, "shared_memory": SIZES}, SPREAD, (UPDATE_BYTE_S, 2e-10))
    ps, worker = found.sockets.ps, found.sockets.worker
    assert (ps.received_s, ps.sent_s) == (pytest.approx(200e-6), pytest.approx(200e-6))
    assert (ps.received_byte_s, ps.sent_byte_s) == (pytest.approx(5e-10 - UPDATE_BYTE_S), pytest.approx(4e-10))
    assert (worker.call_s, worker.sent_s, worker.received_s) == (pytest.approx(200e-6), *[pytest.approx(50e-6)] * 2)
    assert (worker.sent_byte_s, worker.received_byte_s) == (pytest.approx(2e-10), pytest.approx(3e-10))
    assert ps.beside == pytest.approx(0.1 * 1.0, rel=0.5) and found.sockets.trip_s == 0.0
    (_, none), (_, little), (_, more) = found.sockets.rested
    assert (none, little, more) == (0.0, pytest.approx(2e-5), pytest.approx(9e-5))
    assert str(found).startswith("here (") and (found.about or {})["others_cores"] == 0.1
    assert "updates: 0 slots 10.0 GB/s, 1 slots 5.0 GB/s" in calibrating.table(found)


def test_a_lane_that_was_not_measured_costs_what_the_other_one_does() -> None:
    found = calibrating.fitted("here", {"sockets": SIZES}, None, (UPDATE_BYTE_S,))
    assert found.shared_memory == found.sockets
    assert found.sockets.worker.call_s == 0.0


def test_what_falls_with_the_size_has_no_slope() -> None:
    falling = [Sized(n, {PUSH: cost(1e-3 - n * 1e-10, 1e-3, 1e-3)}) for n in (1000, 100_000, 1_000_000)]
    assert calibrating.line(falling, PUSH, "worker_s") == (pytest.approx(1e-3, rel=0.1), 0.0)


def test_rounds_in_which_others_were_busy_count_only_where_there_is_no_choice() -> None:
    taken = ((1, 0.0), (2, 0.0), (3, 0.1), (9, 1.0), (9, 1.0))
    samples = [Sample(PUSH, per_s, 0.0, 0.0, 0.0, others) for per_s, others in taken]
    assert medians(samples)["per_s"] == 2
    assert medians(samples[1:])["per_s"] == 6
    assert (medians(samples)["quiet"], medians(samples)["rounds"]) == (3, 5)


def test_a_card_without_a_rate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--calibrate", "here.json", "--card", "0"]) != 0
    assert "--card, --latency: got 0 Gbit/s" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.slow
def test_a_machine_is_measured_and_its_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer sizes, lanes and ps than usual: each needs a cluster."""
    monkeypatch.setattr(calibrating, "SIZES", ("small", "1m"))
    monkeypatch.setattr(calibrating, "LANES", {"sockets": "socket"})
    monkeypatch.setattr(calibrating, "SPREAD_PS", 2)
    file = tmp_path / "here.json"
    flags = ["--rounds", "1", "--seconds", "0.02", "--card", "25", "--latency", "20"]
    assert main(["bench", "--calibrate", str(file), *flags]) == 0
    found = Calibration.read(file)
    assert f"calibration={str(file)!r}" in capsys.readouterr().out
    assert found.sockets.ps.received_s > 0 and found.shared_memory.worker.sent_s > 0
    assert len(found.update_byte_s) == 3 and min(found.update_byte_s) > 0
    assert (found.card_bytes_per_s, found.latency_s) == (25e9 / 8, pytest.approx(20e-6))
    assert str(found).startswith("here (")
