from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.cluster.device import (
    Device,
    compute_device,
    current_device,
    current_setter,
    device,
)
from dps.cluster.setter import ReplicaDeviceSetter, replica_device_setter


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("", ""),
        ("/", ""),
        ("/job:ps/replica:1/task:2/device:GPU:3", "/job:ps/replica:1/task:2/device:GPU:3"),
        ("/device:GPU:3/task:2/job:ps/replica:1", "/job:ps/replica:1/task:2/device:GPU:3"),
        ("/cpu:0", "/device:CPU:0"),
        ("/CPU:0", "/device:CPU:0"),
        ("/gpu:1", "/device:GPU:1"),
        ("/gpu", "/device:GPU:*"),
        ("/gpu:*", "/device:GPU:*"),
        ("/device:gpu:1", "/device:GPU:1"),
        ("/device:TPU", "/device:TPU:*"),
        ("/device:MyFunnyDevice:2", "/device:MyFunnyDevice:2"),
        ("/device:Cpu", "/device:CPU:*"),
        ("//job:ps///task:01/", "/job:ps/task:1"),
        ("job:ps/task:0", "/job:ps/task:0"),
        ("/job:ps/task:*", "/job:ps"),
        ("/job:*/replica:/task:", ""),
        ("/job:ps/job:worker", "/job:worker"),
    ],
)
def test_a_device_string_comes_out_canonical(spec: str, canonical: str) -> None:
    assert str(Device(spec)) == canonical


def test_a_device_string_fills_the_fields() -> None:
    found = Device("/job:ps/task:0/gpu:1")
    fields = (found.job, found.replica, found.task, found.device_type, found.device_index)
    assert fields == ("ps", None, 0, "GPU", 1)
    assert repr(found) == "Device('/job:ps/task:0/device:GPU:1')"


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("/cpu:0/gpu:0", "second device type 'gpu:0'"),
        ("/cpu:0/device:CPU:1", "second device type 'device:CPU:1'"),
        ("/tpu:0", "'tpu:0'"),
        ("/jobs:ps", "'jobs:ps'"),
        ("/job", "'job'"),
        ("/job:a:b", "'job:a:b'"),
        ("/device:", "'device:'"),
        ("/task:one", "'one'"),
        ("/task:-1", "'-1'"),
        ("/replica:²", "'²'"),
        ("/gpu:x", "'x'"),
        ("/cpu:0:1", "'cpu:0:1'"),
    ],
)
def test_a_device_string_that_makes_no_sense_is_refused_by_its_part(spec: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"got .*wanted") as caught:
        Device(spec)
    assert part in str(caught.value)


def test_keywords_win_over_the_string() -> None:
    assert Device("/job:ps/task:0", task=3, device_type="gpu") == Device("/job:ps/task:3/gpu")
    assert Device(Device("/job:ps"), task=1) == Device("/job:ps/task:1")


@pytest.mark.parametrize(
    "keywords", [{"job": ""}, {"job": "a/b"}, {"task": -1}, {"task": True}, {"device_index": 0}, {"device_type": "*"}]
)
def test_keywords_that_no_string_could_say_are_refused(keywords: dict[str, str | int]) -> None:
    with pytest.raises(ValueError, match=r"got .*wanted"):
        Device(**keywords)  # type: ignore[arg-type]


def test_merging_goes_field_by_field_and_the_inner_wins() -> None:
    outer = Device("/job:ps/task:1/gpu:2")
    assert str(outer.merge("/task:3/cpu:0")) == "/job:ps/task:3/device:CPU:0"
    assert str(outer.merge("/job:worker")) == "/job:worker/task:1/device:GPU:2"
    assert str(outer.merge("/cpu")) == "/job:ps/task:1/device:CPU:2"
    assert outer == Device("/job:ps/task:1/gpu:2")


numbers = st.none() | st.integers(0, 99)
names = st.text("abcXYZ_09-", min_size=1)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    kind = draw(st.none() | st.sampled_from(["CPU", "GPU", "TPU"]))
    return Device(
        job=draw(st.none() | names),
        replica=draw(numbers),
        task=draw(numbers),
        device_type=kind,
        device_index=draw(numbers) if kind else None,
    )


@given(devices())
def test_a_device_survives_its_string(one: Device) -> None:
    assert Device(str(one)) == one
    assert hash(Device(str(one))) == hash(one)


@given(devices(), devices(), devices())
def test_merging_is_associative_with_the_empty_device_as_its_identity(a: Device, b: Device, c: Device) -> None:
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge("") == a == Device().merge(a)
    assert a.merge(a) == a


def test_scopes_nest_and_end() -> None:
    assert current_device() == Device()
    with device("/job:ps/gpu:0"):
        with device(Device("/task:1")):
            assert str(current_device()) == "/job:ps/task:1/device:GPU:0"
        assert str(current_device()) == "/job:ps/device:GPU:0"
    assert current_device() == Device()


def test_a_scope_ends_when_its_block_raises() -> None:
    with pytest.raises(KeyError), device("/job:ps"):
        raise KeyError
    assert current_device() == Device()


def test_a_scope_of_none_changes_nothing() -> None:
    with device("/job:ps"), device(None):
        assert str(current_device()) == str(compute_device()) == "/job:ps"


def test_a_scope_takes_nothing_but_strings_devices_and_setters() -> None:
    for wrong in (3, lambda op: "/cpu:0", ["/cpu:0"]):
        with pytest.raises(TypeError, match="wanted a string"), device(wrong):  # type: ignore[arg-type]
            pass
    with pytest.raises(ValueError, match="second device type"), device("/cpu:0/gpu:0"):
        pass


def test_a_new_thread_starts_without_scopes() -> None:
    seen: list[Device] = []
    with device("/job:ps"):
        thread = threading.Thread(target=lambda: seen.append(current_device()))
        thread.start()
        thread.join()
    assert seen == [Device()]


def made_setter(ps_tasks: int = 3) -> ReplicaDeviceSetter:
    setter = replica_device_setter(ps_tasks=ps_tasks)
    assert setter is not None
    return setter


def test_the_innermost_setter_is_the_current_one() -> None:
    outer, inner = made_setter(), made_setter()
    assert current_setter() is None
    with device(outer):
        with device(inner), device("/gpu:0"):
            assert current_setter() is inner
            assert str(current_device()) == "/device:GPU:0"
        assert current_setter() is outer


def test_a_scope_inside_a_setter_wins_over_it_and_one_outside_gives_way() -> None:
    with device("/job:moon/gpu:5"), device(made_setter()):
        assert str(compute_device()) == "/job:worker/device:GPU:5"
        with device("/job:sun/cpu:0"):
            assert str(compute_device()) == "/job:sun/device:CPU:0"


def test_without_any_scope_a_program_may_compute_anywhere() -> None:
    assert compute_device() == Device()
