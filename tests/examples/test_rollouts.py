"""Rollout processes follow the trainer's published weights: no episode has a wrong stamp, and the trainer learns."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

PROGRAM = str(EXAMPLES / "rollouts.py")
COMMANDS = {
    "alone": (PROGRAM,),
    "launched": ("-m", "dps.cli", "launch", "--ps", "2", "--workers", "1", PROGRAM),
}
GOAL, AT_FIRST = 195.0, 60.0
"""Steps of an episode: a mean of 100 that the trainer reaches, and most of the mean of those before the tenth update.
Pushes at random last 22."""


@pytest.mark.skipif(find_spec("gymnasium") is None, reason='needs gymnasium: pip install "dps[gymnasium]"')
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(COMMANDS["alone"], marks=pytest.mark.nightly, id="alone"),
        pytest.param(COMMANDS["launched"], id="launched"),
    ],
)
def test_four_rollout_processes_play_as_their_stamps_say_and_the_trainer_learns(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *command)
        codes, said = terminals.ended()
    text = said["all"]
    assert codes == {"all": 0}, text
    returns = [float(mean) for mean in re.findall(r"update +\d+  mean return ([\d.]+)", text)]
    assert len(returns) >= 10 and returns[9] < AT_FIRST and returns[-1] >= GOAL, text
    found = re.search(r"(\d+) episodes, (\d+) of a wrong version, ([\d.]+) versions behind on average", text)
    assert found is not None, text
    episodes, wrong, behind = int(found[1]), int(found[2]), float(found[3])
    assert episodes == 16 * len(returns) and wrong == 0 and behind < 5, text
    assert "the rollout processes ended with [0, 0, 0, 0]" in text and "was silent" not in text


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("gymnasium") is None, reason='needs gymnasium: pip install "dps[gymnasium]"')
def test_weights_that_are_not_those_of_the_stamp_are_counted(tmp_path: Path) -> None:
    """A rollout process that changes its weights before it plays: the figure can be other than zero."""
    text = (EXAMPLES / "rollouts.py").read_text()
    planted = text.replace("follower.swap(out=params)", "follower.swap(out=params) and params['weights'].put(0, 7)")
    assert planted != text
    (tmp_path / "planted.py").write_text(planted.replace("goal: float = 195.0", "goal: float = 60.0"))
    with Terminals(tmp_path) as terminals:
        terminals.start("all", "planted.py")
        codes, said = terminals.ended()
    found = re.search(r"(\d+) episodes, (\d+) of a wrong version", said["all"])
    assert codes == {"all": 0} and found is not None and int(found[2]) > 0, said
