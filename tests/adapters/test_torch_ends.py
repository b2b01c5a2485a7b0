"""A program with a `dps.torch.Optimizer` needs no `close()`: its end is a good one, or that of its error."""

from __future__ import annotations

from pathlib import Path

import pytest

import dps
from tests.examples.processes import Terminals, free_addresses

pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')

SCRIPT = str(Path(__file__).with_name("ends.py"))
ROOT = str(Path(__file__).parents[2])
ENDS = {"return": 0, "exit 0": 0, "exit 3": 3, "raise": 1}


def ends(*hows: str, nightly: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """A test for each of these ends; those of `nightly` are left out by CI."""
    marks = {how: [pytest.mark.nightly] if how in nightly else [] for how in (*hows, *nightly)}
    return pytest.mark.parametrize(
        ("how", "code"), [pytest.param(how, ENDS[how], marks=mark, id=how) for how, mark in marks.items()]
    )


def check(said: str, how: str, times: int = 1) -> None:
    """What the program says at its end: the hooks' `end` is called after a good one only."""
    assert said.count("good end at step") == (0 if ENDS[how] else times), said
    assert ("ValueError: no more" in said) == (how == "raise"), said
    assert said.count("the last line") == (times if how == "return" else 0), said
    assert "was silent" not in said, said


@pytest.mark.slow
@ends("return", "raise", nightly=("exit 0", "exit 3"))
def test_alone(how: str, code: int, tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", SCRIPT, how, PYTHONPATH=ROOT)
        codes, said = terminals.ended()
    assert codes == {"alone": code}, said
    check(said["alone"], how)
    assert "dps" not in said["alone"].replace("dps.torch", "") or how == "raise", said


@pytest.mark.slow
@ends("return", nightly=("exit 3", "raise"))
def test_under_dps_launch(how: str, code: int, tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        command = "-m", "dps.cli", "launch", "--ps", "1", "--workers", "2", SCRIPT, "--", how
        terminals.start("all", *command, PYTHONPATH=ROOT)
        codes, said = terminals.ended()
    assert codes == {"all": code}, said
    assert said["all"].count("good end at step") == (0 if code else 2), said


@pytest.mark.slow
@ends("raise", nightly=("exit 0", "return", "exit 3"))
def test_as_the_program_of_a_role(how: str, code: int, tmp_path: Path) -> None:
    (chief,) = free_addresses(1)
    with Terminals(tmp_path) as terminals:
        role = "-m", "dps.role", "--chief", chief, "--job"
        terminals.start("chief", *role, "chief", "--ps", "1", "--workers", "1", PYTHONPATH=ROOT)
        terminals.start("ps", *role, "ps", "--task", "0", PYTHONPATH=ROOT)
        terminals.start("worker", *role, "worker", "--task", "0", "--program", SCRIPT, "--", how, PYTHONPATH=ROOT)
        codes, said = terminals.ended()
    assert codes == {"chief": min(code, 1), "ps": min(code, 1), "worker": code}, said
    check(said["worker"], how)


@ends(*ENDS)
def test_in_threads_of_a_local_cluster(how: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    from tests.adapters.ends import STEPS, train

    with dps.LocalCluster(ps=1, workers=2, processes=False) as local:
        run = local.run(train, how)
        if code:
            with pytest.raises(dps.DpsError, match="SystemExit: 3" if how == "exit 3" else "ValueError: no more"):
                run.wait(60)
        elif how == "return":
            run.wait(60)
            assert max(row["step"] for row in run.history) >= STEPS
            local.run(train, how).wait(60)  # the workers are still there
    assert "was silent" not in capfd.readouterr().err


def test_a_session_that_cannot_be_closed_makes_a_good_end_a_bad_one() -> None:
    from dps.process import endings

    told: list[str] = []

    def fails(error: BaseException | None) -> None:
        raise ValueError("does not close")

    def program() -> None:
        with endings.program():
            endings.at_end(lambda error: told.append(repr(error)))
            endings.at_end(fails)

    with pytest.raises(ValueError, match="does not close"):
        program()
    assert told == ["ValueError('does not close')"]


def test_what_was_closed_before_is_not_closed_at_the_end() -> None:
    from dps.process import endings

    told: list[str] = []
    with endings.program():
        cancel = endings.at_end(lambda error: told.append("closed"))
        cancel()
        cancel()

    def exits() -> None:
        with endings.program():
            endings.at_end(lambda error: told.append(f"ended with {error!r}"))
            raise SystemExit(0)

    with pytest.raises(SystemExit):
        exits()
    assert told == ["ended with None"]
