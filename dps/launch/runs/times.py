"""Times of runs: UTC with milliseconds in files, local time and ages for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dps.errors import ConfigError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def utc(at: float) -> str:
    """Seconds since 1970 as text: "2026-01-31T12:00:00.000Z"."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """Seconds since 1970 of what `utc` returns. ValueError for other text."""
    return datetime.fromisoformat(text).timestamp()


def local(text: str) -> str:
    """A time in this machine's time zone, without the milliseconds; "" for ""."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def age(seconds_ago: float) -> str:
    """How long something has taken: "12 s", "3 min", "2 h 5 min", "4 d 1 h"."""
    whole = max(0, int(seconds_ago))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def duration(flag: str, text: str) -> float:
    """The seconds of a duration such as 90s, 10m, 2h or 30d. ConfigError, with the flag that has it, for other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise ConfigError(f"got {flag} {text!r}; wanted a duration such as 90s, 10m, 2h or 1d")
    return float(found[1]) * UNITS[found[2]]


def since(text: str, now: float) -> float:
    """The time that a --since means: a duration before `now` such as 10m, or a date and time, local without a zone. It
    is not before 1970, as no run is."""
    try:
        return max(0.0, now - duration("--since", text))
    except ConfigError:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise ConfigError(f"got --since {text!r}; wanted a duration such as 90s, 10m, 2h or 1d, or a time") from None
