"""Matrix factorisation of MovieLens-100K in PyTorch, and of a file of its form made here, whose noise is known."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.examples.processes import EXAMPLES, Terminals
from tests.examples.test_missing import HIDDEN

PROGRAM = str(EXAMPLES / "movielens.py")
LAUNCH = "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", PROGRAM, "--"
HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
NOISE = 0.3
DOWNLOAD_S = 60.0

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason='needs torch: pip install "dps[torch]"')


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What PYTHONPATH needs so that the program finds the ratings: nothing where recbole is installed."""
    if find_spec("recbole") is not None:
        return ""
    folder = str(tmp_path_factory.mktemp("recbole"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, "recbole==1.2.1"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.SubprocessError as error:
        why = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"recbole, which has the ratings, cannot be had: {why.strip().splitlines()[-1]}")
    return folder


def errors_of(said: str) -> list[float]:
    found = re.findall(r"done at step \d+, RMSE ([\d.]+) on ratings kept aside", said)
    assert len(found) == 2, said
    return [float(error) for error in found]


@needs_torch
def test_movielens_is_predicted_better_than_by_means_of_users_and_films(ratings: str, tmp_path: Path) -> None:
    """On these ratings the mean has an RMSE of 1.126; with the best number for each user and film, 0.938."""
    path = os.pathsep.join(filter(None, [ratings, os.environ.get("PYTHONPATH")]))
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *LAUNCH, "--steps", "400", PYTHONPATH=path)
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    assert all(0.9 < error < 0.937 for error in errors_of(said["all"])), said


@needs_torch
def test_ratings_of_a_known_model_are_predicted_as_well_as_their_noise_allows(tmp_path: Path) -> None:
    """Runs where MovieLens cannot be had, too: a file of its form, whose ratings are those of two numbers and noise."""
    rng = np.random.default_rng(3)
    user, film = np.divmod(rng.permutation(200 * 150)[:20_000], 150)
    stars = 3 + rng.normal(0, 0.6, 200)[user] + rng.normal(0, 0.6, 150)[film] + rng.normal(0, NOISE, len(user))
    rows = (f"{u + 1}\t{f + 1}\t{s:.3f}\t881250949\n" for u, f, s in zip(user, film, stars, strict=True))
    (tmp_path / "made.inter").write_text(HEAD + "".join(rows))
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *LAUNCH, "--steps", "200", "--file", str(tmp_path / "made.inter"))
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    assert all(0.95 * NOISE < error < 1.3 * NOISE for error in errors_of(said["all"])), said


def test_without_the_ratings_one_line_says_what_to_install(tmp_path: Path) -> None:
    torch = "import sys\nfor name in ('torch', 'dps.torch'):\n    sys.modules[name] = type(sys)(name)\n"
    (tmp_path / "sitecustomize.py").write_text(torch + HIDDEN.replace("mlxtend", "recbole"))
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", PROGRAM, PYTHONPATH=str(tmp_path))
        codes, said = terminals.ended()
    assert codes == {"alone": 1}
    assert said["alone"].count("\n") == 1 and "pip install --no-deps recbole" in said["alone"]
