"""Runs the `dps` command as `python -m dps`, also where the script of that name is not on the path."""

from __future__ import annotations

from dps.cli import run

if __name__ == "__main__":
    run()
