"""Programs take seconds: `make examples` runs these tests, `make test` does not."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = os.path.dirname(__file__) + os.sep
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.slow)
