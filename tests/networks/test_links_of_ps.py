"""A small form of benchmarks/scale_out.py: two ps over slow links carry more than one."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.links import NoLinks, star
from benchmarks.scale_out import main

pytestmark = pytest.mark.slow


@pytest.fixture
def links() -> None:
    """`make networks` sets DPS_NETWORKS=1: then it fails where it would skip."""
    try:
        with star({"ps:0": 20}, "cubic"):
            pass
    except NoLinks as error:
        if os.environ.get("DPS_NETWORKS"):
            raise
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.usefixtures("links")
def test_two_ps_carry_more_than_one_where_links_are_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--megabytes", "2", "--rows", "4096", "--megabits", "20", "--workers", "1", "--ps", "1,2"]
    length = ["--updates", "async", "--rounds", "1", "--seconds", "0.5", "--torch", "", "--json"]
    assert main([*sizes, *length]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["failures"] == []
    assert [(row["work"], row["ps"]) for row in found["results"]] == [
        ("step", 1), ("step", 2), ("rows", 1), ("rows", 2),
    ]  # fmt: skip
    for one, two in zip(found["results"][::2], found["results"][1::2], strict=True):
        for system in ("raw", "dps"):
            assert two["systems"][system]["MB_per_s"] > 1.2 * one["systems"][system]["MB_per_s"]
            assert 0 < one["systems"][system]["share"] < 1.1
