"""Two commits in turn: what runs when, what comes of the times, and that each run has its own commit's files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import two_commits
from benchmarks.two_commits import Chosen, compared, ratios, table, worktrees


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-b", "main")
    for text in ("old", "new"):
        (tmp_path / "file").write_text(text)
        git("add", "file")
        git("commit", "-m", text)
    return tmp_path


def test_each_commit_has_its_files_in_a_folder_that_goes_again(repository: Path) -> None:
    with worktrees(["main~1", "main"], repository) as trees:
        assert [(tree / "file").read_text() for tree in trees] == ["old", "new"]
    assert not any(tree.exists() for tree in trees)
    assert not list((repository / ".git" / "worktrees").glob("*"))


def test_a_commit_that_is_not_there_is_named(repository: Path) -> None:
    with pytest.raises(SystemExit, match="main~7: git has no such commit"), worktrees(["main", "main~7"], repository):
        pass
    assert not list((repository / ".git" / "worktrees").glob("*"))


def test_the_commit_that_goes_first_alternates_and_first_runs_are_not_counted() -> None:
    order: list[int] = []

    def run(commit: int) -> dict[str, float]:
        order.append(commit)
        return {"W1": float(len(order))}

    pairs = compared(3, run)
    assert order == [0, 1, 0, 1, 1, 0, 0, 1]
    assert pairs == [[{"W1": 3.0}, {"W1": 4.0}], [{"W1": 6.0}, {"W1": 5.0}], [{"W1": 7.0}, {"W1": 8.0}]]


def test_ratios_come_with_their_spread_and_say_what_is_clear() -> None:
    pairs = [
        [{"a": a, "b": 1.0}, {"a": 1.0, "b": b}]
        for a, b in ((2.0, 0.5), (6.0, 2.0), (3.0, 1.0), (4.0, 1.0), (5.0, 4.0))
    ]
    found = ratios(pairs)
    assert found["a"] == [2.0, 3.0, 4.0, 5.0, 6.0]
    _, a, b = table(found).splitlines()
    assert a.split() == ["a", "4.00", "2.00", "6.00", "faster"]
    assert b.split() == ["b", "1.00", "0.25", "2.00"]
    assert "faster" not in table(ratios(pairs[:4]))


def test_all_works_are_measured_with_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_commits, "STEPS", {"small": 3})
    chosen = Chosen(sizes=("small",), lanes=("shared",), seconds=0.0, rows=1000, taken=600)
    found = two_commits.measured(chosen, processes=False)
    dense = [f"{work}{form}, small, shared" for work in ("W1 pull", "W2 push", "W3 step", "W5 step")
             for form in ("", " in place")]  # fmt: skip
    assert list(found) == [
        *dense[:6],
        "W6 loop, small, shared",
        "W4 pull, table, shared",
        "W4 push, table, shared",
        *dense[6:],
    ]
    assert all(seconds > 0 for seconds in found.values())


def test_only_the_chosen_works_need_clusters() -> None:
    assert list(Chosen(works=("W4",), lanes=("socket",)).groups()) == [("sparse", "table", "socket")]
    assert list(Chosen(works=("W1", "W5"), sizes=("small",), lanes=("shared",)).groups()) == [
        ("dense", "small", "shared"), ("sync", "small", "shared"),
    ]  # fmt: skip
