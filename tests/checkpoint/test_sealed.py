from __future__ import annotations

import json
import math

import pytest

from dps.checkpoint.sealed import seal, unseal
from dps.errors import CheckpointError

BODY = {"format_version": 1, "text": "ö \U0001f600", "numbers": [1, 0.1, -3e300], "map": {"b": None, "a": True}}


def test_a_sealed_document_comes_back_as_it_was() -> None:
    assert unseal(seal(BODY), "f", 1) == BODY


def test_a_sealed_document_is_plain_json() -> None:
    document = json.loads(seal(BODY))
    checksum = document.pop("checksum")
    assert document == BODY
    assert len(checksum) == 64


def test_infinity_survives() -> None:
    assert unseal(seal({"format_version": 1, "x": math.inf}), "f", 1)["x"] == math.inf


def test_any_altered_byte_is_noticed() -> None:
    data = seal(BODY)
    for offset in range(len(data)):
        altered = bytearray(data)
        altered[offset] ^= 0x01
        with pytest.raises(CheckpointError, match="f is truncated or altered"):
            unseal(bytes(altered), "f", 1)


def test_a_document_cut_anywhere_is_noticed() -> None:
    data = seal(BODY)
    for n in range(len(data)):
        with pytest.raises(CheckpointError, match=f"does not fit its {n} bytes"):
            unseal(data[:n], "f", 1)


def test_bytes_after_the_end_are_noticed() -> None:
    with pytest.raises(CheckpointError, match="altered"):
        unseal(seal(BODY) + b"\n", "f", 1)


def test_a_newer_format_is_told_apart_from_damage() -> None:
    with pytest.raises(CheckpointError, match="format version 2, of a newer dps; this one reads up to 1: upgrade dps"):
        unseal(seal({"format_version": 2}), "f", 1)


@pytest.mark.parametrize("version", [None, "1", 0, True, 1.0])
def test_a_format_version_that_is_no_whole_number_from_1_is_refused(version: object) -> None:
    with pytest.raises(CheckpointError, match="wanted 1 to 1"):
        unseal(seal({"format_version": version}), "f", 1)


def test_values_that_json_has_not_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        seal({"format_version": 1, "x": b"bytes"})
