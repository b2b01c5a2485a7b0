"""The site needs no network, and its search works from a folder."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "mkdocs.yml").read_text()
GROUPS: list[tuple[str, Any]] = [item for group in yaml.safe_load(SETTINGS)["nav"] for item in group.items()]


def building() -> ModuleType:
    """The module of docs/building that mkdocs calls."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "building" / "pages.py")
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return pages


def test_what_makes_the_search_work_from_a_folder_is_our_own() -> None:
    assert re.search(r"^  - offline", SETTINGS, re.M)
    found = re.search(r"polyfills: \[(\S+)\]", SETTINGS)
    assert found is not None and (ROOT / "docs" / found[1]).is_file()
    assert "iframe-worker" in found[1]  # a name without it, and the plugin adds its own from elsewhere


def test_what_a_user_asks_comes_before_reasons_in_the_search() -> None:
    pages = building()

    class Shown:
        def __init__(self, path: str) -> None:
            self.file, self.meta = SimpleNamespace(src_uri=path), dict[str, Any]()

    found = [Shown(path) for path in ("guide/runs.md", "performance.md", "decisions/0001-one-seam.md")]
    for page in found:
        pages.on_page_markdown("", page)
    boosts = [page.meta["search"]["boost"] for page in found]
    assert boosts == sorted(boosts, reverse=True) and len(set(boosts)) == 3


def test_the_sidebar_has_groups_of_at_most_ten_pages_of_the_guide() -> None:
    assert all(isinstance(pages, list) for _, pages in GROUPS[:-1])
    for name, pages in GROUPS:
        if not any(page.startswith(("api/", "notebooks/")) for page in pages):
            assert isinstance(pages, str) or len(pages) <= 10, f"{name} has {len(pages)} pages"


def test_what_happens_in_training_comes_before_the_ways_to_start() -> None:
    order = [page for _, pages in GROUPS for page in (pages if isinstance(pages, list) else [pages])]
    training = ["guide/update-modes.md", "guide/placement.md", "guide/checkpoints.md"]
    starting = ["starting", "experiment-file", "runs", "ssh", "slurm", "ray", "kubernetes", "resolvers", "two-machines"]
    places = [order.index(page) for page in training]
    ways = [order.index(f"guide/{name}.md" if name != "starting" else "starting.md") for name in starting]
    assert max(places) < min(ways)


def test_code_in_a_table_is_broken_at_spaces_only() -> None:
    pages = building()
    html = "<p><code>--task_index 0</code></p><table><td align='left'><code>--task_index 0</code></td></table>"
    words = "<code><span>--task_index</span> <span>0</span></code>"
    assert (
        pages.on_page_content(html) == f"<p><code>--task_index 0</code></p><table><td align='left'>{words}</td></table>"
    )
    style = (ROOT / "docs" / "assets" / "site.css").read_text()
    assert re.search(r"\.md-typeset td code > span {\s*white-space: nowrap;", style)


def separator() -> str:
    (search,) = [plugin["search"] for plugin in yaml.safe_load(SETTINGS)["plugins"] if "search" in plugin]
    return str(search["separator"])


def test_no_word_of_the_search_has_a_star_which_lunr_takes_for_a_wildcard() -> None:
    """One word such as `ax.step(*lead` in any page, and every query with a word "a" found nothing."""
    assert re.split(separator(), "ax.step(*lead(x)), --task_index 0.5") == [
        "ax",
        "step",
        "lead",
        "x",
        "task_index",
        "0.5",
    ]


def answers(words: str, sections: list[dict[str, str]]) -> list[str]:
    """The places whose heading has all the words, as the search puts them first."""
    return [s["location"] for s in sections if all(w in re.split(r"\W+", s["title"].lower()) for w in words.split())]


@pytest.mark.site
def test_no_page_of_the_site_loads_anything_from_elsewhere_and_the_search_finds_what_is_asked_first() -> None:
    site = ROOT / "build" / "site"
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50 and (site / "search" / "search_index.js").is_file()
    for page in pages:
        text = page.read_text()
        assert "assets/iframe-worker.js" in text
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text)
        elsewhere = [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)]
        assert not elsewhere, f"{page.name}: {elsewhere[:3]}"
    index = (site / "search" / "search_index.js").read_text()
    sections = json.loads(index[index.index("{") : index.rindex("}") + 1])["docs"]
    texts = (re.sub(r"<[^>]*>", " ", f"{section['title']} {section['text']}") for section in sections)
    assert not [word for text in texts for word in re.split(separator(), text) if "*" in word]
    assert "guide/runs.html#stop-a-run" in answers("stop a run", sections)
    assert {"guide/update-modes.html#clip-gradients", "guide/pytorch.html#clip-gradients"} <= set(
        answers("clip", sections)
    )
