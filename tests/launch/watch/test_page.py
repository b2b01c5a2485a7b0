"""The page as a file: it loads nothing, texts cannot leave their place, and the policy knows its own script alone."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dps.launch.watch import page
from tests.launch.watch.readings import EVIL

FOLDER = Path(page.__file__).parent


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.texts.append((self.found[-1][0], data))


def test_the_page_is_one_file_that_loads_nothing() -> None:
    elements = Elements(page.live_page())
    for tag, attributes in elements.found:
        assert tag not in ("iframe", "object", "embed", "form", "base", "img")
        assert not {
            name for name in attributes if name.startswith("on") or name in ("style", "src", "srcset", "action")
        }
        assert attributes.get("href") in (None, "data:,", "save")
    source = (FOLDER / "page.js").read_text()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "import(",
    ):
        assert way not in source
    assert re.findall(r"https?://[^\"']+", source) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in (FOLDER / "page.css").read_text() and "@import" not in (FOLDER / "page.css").read_text()


def test_the_policy_has_the_digests_of_the_script_and_the_style() -> None:
    elements = Elements(page.live_page())
    texts = {tag: text for tag, text in elements.texts if len(text) > 100}
    for tag, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page.policy()
    (own,) = [a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert page.policy().startswith(str(own)) and texts.keys() == {"script", "style"}


@pytest.mark.parametrize("text", [EVIL, "<!--", "<script>", "]]>", "@@DATA@@", "\u2028\u2029\x00", "</SCRIPT >"])
def test_no_text_of_a_run_leaves_the_data_of_a_saved_page(text: str) -> None:
    values: dict[str, Any] = {"status": {"name": text, text: [text]}, "lines": [["", text, text]]}
    saved = page.saved_page(values)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', saved, re.S)
    assert json.loads(data) == values and not set(data) & set("<>&")
    assert [tag for tag, _ in Elements(saved).found] == [tag for tag, _ in Elements(page.live_page()).found]
    assert saved.replace(data, "") == page.live_page()


def test_a_path_is_escaped_where_the_browser_is_sent_on() -> None:
    (refresh,) = [a for _, a in Elements(page.forward_page('/"><b>')).found if a.get("http-equiv") == "refresh"]
    assert refresh["content"] == '0; url=/"><b>' and html.escape('/"><b>') in page.forward_page('/"><b>')


@pytest.mark.slow
def test_a_wheel_has_the_files_of_the_page(tmp_path: Path) -> None:
    """Built by hatchling itself, without the environment that a build makes."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling, which builds wheels, is not installed")
    root = Path(__file__).parents[3]
    (wheel,) = builder.WheelBuilder(str(root)).build(directory=str(tmp_path))
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"dps/launch/watch/page.{kind}" for kind in ("html", "css", "js")} <= set(names)
