"""Matrix factorisation of MovieLens-100K, in PyTorch and on keyed tables, and of ratings whose noise is known."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.processes import EXAMPLES, Terminals
from tests.examples.test_missing import HIDDEN

LAUNCH = "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2"
HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
NOISE = 0.3
DOWNLOAD_S = 60.0
Array = np.ndarray[Any, np.dtype[np.int64]]

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason='needs torch: pip install "dps[torch]"')
each_program = pytest.mark.parametrize(
    "program", [pytest.param("movielens.py", marks=needs_torch), "keyed_movielens.py"]
)


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


def check_error(program: str, *given: str, cwd: Path, low: float, high: float, path: str = "") -> None:
    """Both of two workers tell an RMSE between `low` and `high`."""
    found = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
    with Terminals(cwd) as terminals:
        terminals.start("all", *LAUNCH, str(EXAMPLES / program), "--", *given, PYTHONPATH=found)
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    assert all(low < error < high for error in errors_of(said["all"])), said


@each_program
def test_movielens_is_predicted_better_than_by_means_of_users_and_films(
    program: str, ratings: str, tmp_path: Path
) -> None:
    """On these ratings the mean has an RMSE of 1.126; with the best number for each user and film, 0.938."""
    check_error(program, "--steps", "400", cwd=tmp_path, low=0.9, high=0.937, path=ratings)


def made_ratings(user_ids: Array, film_ids: Array) -> str:
    """20,000 ratings that are those of two numbers and noise, by 200 users of 150 films."""
    rng = np.random.default_rng(3)
    user, film = np.divmod(rng.permutation(200 * 150)[:20_000], 150)
    stars = 3 + rng.normal(0, 0.6, 200)[user] + rng.normal(0, 0.6, 150)[film] + rng.normal(0, NOISE, len(user))
    triples = zip(user_ids[user], film_ids[film], stars, strict=True)
    return HEAD + "".join(f"{u}\t{f}\t{s:.3f}\t881250949\n" for u, f, s in triples)


@needs_torch
@pytest.mark.nightly
def test_ratings_of_a_known_model_are_predicted_as_well_as_their_noise_allows(tmp_path: Path) -> None:
    """Runs where MovieLens cannot be had, too."""
    made = tmp_path / "made.inter"
    made.write_text(made_ratings(1 + np.arange(200), 1 + np.arange(150)))
    given = "--steps", "200", "--file", str(made)
    check_error("movielens.py", *given, cwd=tmp_path, low=0.95 * NOISE, high=1.3 * NOISE)


def test_ids_of_keyed_tables_may_be_any_int64(tmp_path: Path) -> None:
    """The same ratings, by ids from -2^63 to 2^63 - 1."""
    ids, made = np.linspace(-(2.0**62), 2.0**62, 200).astype(np.int64), tmp_path / "made.inter"
    ids[:3] = -(2**63), 2**63 - 1, -1
    made.write_text(made_ratings(ids, ids[:150]))
    given = "--steps", "200", "--file", str(made)
    check_error("keyed_movielens.py", *given, cwd=tmp_path, low=0.95 * NOISE, high=1.3 * NOISE)


@each_program
def test_without_the_ratings_one_line_says_what_to_install(program: str, tmp_path: Path) -> None:
    torch = "import sys\nfor name in ('torch', 'dps.torch'):\n    sys.modules[name] = type(sys)(name)\n"
    (tmp_path / "sitecustomize.py").write_text(torch + HIDDEN.replace("mlxtend", "recbole"))
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", str(EXAMPLES / program), PYTHONPATH=str(tmp_path))
        codes, said = terminals.ended()
    assert codes == {"alone": 1}
    assert said["alone"].count("\n") == 1 and "pip install --no-deps recbole" in said["alone"]
