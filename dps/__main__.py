"""`python -m dps` is the `dps` command, also where no script of that name is on the path."""

from __future__ import annotations

from dps.cli import run

if __name__ == "__main__":
    run()
