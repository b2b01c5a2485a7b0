from __future__ import annotations

import json
import math

import pytest

from dps.checkpoint.files import seal, unseal, unseal_lines
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


LINES = ['{"a": 1}', '{"b": "x,\\n  y \\u00f6", "c": [{}]}', '{"d": null}']


def test_the_elements_of_the_last_list_stand_on_a_line_each_and_come_back_unread() -> None:
    data = seal(BODY, "last", LINES)
    assert [json.loads(line) for line in LINES] == json.loads(data)["last"]
    assert [line.strip(" ,") for line in data.decode().splitlines() if line.startswith("  {")] == LINES
    assert unseal_lines(data, "f", 1, "last") == (BODY, LINES)
    assert unseal(data, "f", 1) == {**BODY, "last": [json.loads(line) for line in LINES]}


def test_a_list_without_elements_comes_back_too() -> None:
    assert unseal_lines(seal(BODY, "last", []), "f", 1, "last") == (BODY | {"last": []}, [])


def test_a_last_list_over_several_lines_is_read_as_well() -> None:
    values = [json.loads(line) for line in LINES]
    body, lines = unseal_lines(seal({**BODY, "last": values, "text": "[\n  {"}), "f", 1, "last")
    assert [json.loads(line) for line in lines] == values and body["text"] == "[\n  {"


@pytest.mark.parametrize("last", [None, 3, {}])
def test_a_document_without_the_list_is_refused(last: object) -> None:
    with pytest.raises(CheckpointError, match="f has no list of last"):
        unseal_lines(seal({**BODY, "last": last}), "f", 1, "last")
