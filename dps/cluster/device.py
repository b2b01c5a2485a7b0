"""Device strings such as `/job:ps/task:0/device:GPU:1`, and the scopes that set them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dps.cluster.spec import ClusterSpec, job_name
from dps.errors import ConfigError
from dps.process.record import as_dict, fields_of, record

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


_SHORT_TYPES = ("CPU", "GPU")
_KEYS = "/job:NAME, /replica:N, /task:N, /device:TYPE:N, /cpu:N, /gpu:N"


@record
class Device:
    """A placement; fields that are not set are None. `str()` is the canonical form.

    In a string, parts come in any order and empty parts are ignored; `*` or no index means any index; the last of two
    equal keys counts. Keyword arguments replace fields of the string.

    Args:
        spec: A string such as "/job:ps/task:0/gpu:1", or a Device.
        job: The job's name.
        replica: The replica's index.
        task: The task's index.
        device_type: "CPU", "GPU" or another type.
        device_index: The index among the devices of the type, which needs a type.

    Raises:
        ValueError: Two device types, an unknown key, an index that is not a number, or one without a device type.

    Example:
        ```pycon
        >>> where = dps.Device("/job:ps/gpu:1", task=0)
        >>> str(where)
        '/job:ps/task:0/device:GPU:1'
        >>> str(where.merge("/task:2"))
        '/job:ps/task:2/device:GPU:1'
        ```
    """

    job: str | None
    replica: int | None
    task: int | None
    device_type: str | None
    device_index: int | None

    def __init__(
        self,
        spec: str | Device = "",
        *,
        job: str | None = None,
        replica: int | None = None,
        task: int | None = None,
        device_type: str | None = None,
        device_index: int | None = None,
    ) -> None:
        fields: dict[str, str | int | None] = dict.fromkeys(fields_of(Device))
        fields |= _parse(spec) if isinstance(spec, str) else as_dict(spec)
        given = {"job": job, "replica": replica, "task": task, "device_type": device_type, "device_index": device_index}
        for key, value in given.items():
            if value is not None:
                fields[key] = _checked(key, value)
        if fields["device_index"] is not None and fields["device_type"] is None:
            raise ValueError(f"device: got device_index {device_index} alone, wanted device_type with it")
        for key, field in fields.items():
            object.__setattr__(self, key, field)

    def merge(self, other: str | Device) -> Device:
        """This device, with every field replaced that the other one sets.

        Args:
            other: The inner scope: a string or a Device.

        Returns:
            A new device.
        """
        return _merged(self, other if isinstance(other, Device) else Device(other))

    def __str__(self) -> str:
        parts = [f"/{key}:{getattr(self, key)}" for key in ("job", "replica", "task") if getattr(self, key) is not None]
        if self.device_type is not None:
            parts.append(f"/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (str(self),)


@functools.lru_cache(maxsize=4096)
def _merged(outer: Device, inner: Device) -> Device:
    """Merge two devices. Cached, because the same few devices are merged for every variable."""
    merged = Device()
    for key, field in as_dict(outer).items():
        own = getattr(inner, key)
        object.__setattr__(merged, key, field if own is None else own)
    return merged


@functools.lru_cache(maxsize=4096)
def on_task(where: Device, task: int) -> Device:
    """The same device on this task; cached."""
    return Device(where, task=task)


def _parse(spec: str) -> dict[str, str | int | None]:
    fields: dict[str, str | int | None] = {}
    for part in spec.split("/"):
        key, *values = part.split(":")
        if not part:
            continue
        if key == "job" and len(values) == 1:
            fields["job"] = None if values[0] in ("", "*") else values[0]
        elif key in ("replica", "task") and len(values) == 1:
            fields[key] = _number(spec, part, values[0])
        elif key.upper() in _SHORT_TYPES and len(values) <= 1:
            _set_type(fields, spec, part, [key, *values])
        elif key == "device" and len(values) in (1, 2) and values[0] not in ("", "*"):
            _set_type(fields, spec, part, values)
        else:
            raise ValueError(f"device {spec!r}: got the part {part!r}, wanted {_KEYS}")
    return fields


def _set_type(fields: dict[str, str | int | None], spec: str, part: str, values: list[str]) -> None:
    if "device_type" in fields:
        raise ValueError(f"device {spec!r}: got a second device type {part!r}, wanted one; leave the others out")
    fields["device_type"] = _type(values[0])
    fields["device_index"] = _number(spec, part, values[1] if len(values) == 2 else "")


def _type(text: str) -> str:
    """A device type: CPU and GPU in capitals, others unchanged."""
    return text.upper() if text.upper() in _SHORT_TYPES else text


def _number(spec: str, part: str, text: str) -> int | None:
    if text in ("", "*"):
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"device {spec!r}: got {text!r} in {part!r}, wanted a number, '*' or nothing for any")
    return int(text)


def _checked(key: str, value: object) -> str | int:
    """Check a keyword of `Device` and convert it to its stored form."""
    if key in ("job", "device_type"):
        if not isinstance(value, str) or not value or any(letter in "/:*" for letter in value):
            raise ValueError(f"device: got {key}={value!r}, wanted a name without '/', ':' and '*'")
        return _type(value) if key == "device_type" else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"device: got {key}={value!r}, wanted a whole number from 0")
    return value


NOWHERE = Device()
"""A device without any field set."""


@runtime_checkable
class Setter(Protocol):
    """Chooses devices; `replica_device_setter` makes the usual one. `scope`: the merged device of the inner scopes."""

    def variable(
        self, name: str, shape: Sequence[int] = (), dtype: DTypeLike = "float32", scope: str | Device = ""
    ) -> Device:
        """The device of a variable that is created now. May count variables."""
        ...

    def compute(self, scope: str | Device = "") -> Device:
        """The device of computations."""
        ...


_scopes: ContextVar[tuple[Device | Setter, ...]] = ContextVar("dps_device_scopes", default=())


@contextmanager
def device(where: str | Device | Setter | None) -> Iterator[None]:
    """A scope that places the variables made inside it. Scopes nest, and the inner one wins.

    The scope belongs to this context (contextvars): a new thread starts without it.

    Args:
        where: A string such as "/job:ps/task:0", a `dps.Device`, or a setter of `dps.replica_device_setter`. None (the
            setter if there is no ps) changes nothing.

    Yields:
        Nothing.

    Raises:
        ValueError: A malformed string.
        TypeError: Anything else.

    Example:
        ```pycon
        >>> with dps.device("/job:ps/task:1"):
        ...     variable = dps.Variable(np.zeros(3))
        >>> str(variable.device)
        '/job:ps/task:1'
        ```
    """
    if where is None:
        yield
        return
    if not isinstance(where, str | Device | Setter):
        raise TypeError(
            f"device: got {where!r}, wanted a string such as '/job:ps/task:0', a Device, or a setter "
            "(an object with variable() and compute())"
        )
    token = _scopes.set((*_scopes.get(), Device(where) if isinstance(where, str) else where))
    try:
        yield
    finally:
        _scopes.reset(token)


def current_device() -> Device:
    """The strings and Devices of the enclosing scopes, merged; setters are left out."""
    merged = NOWHERE
    for scope in _scopes.get():
        if isinstance(scope, Device):
            merged = merged.merge(scope)
    return merged


def current_setter() -> Setter | None:
    """The innermost setter of the enclosing scopes, or None."""
    return next((scope for scope in reversed(_scopes.get()) if not isinstance(scope, Device)), None)


def compute_device() -> Device:
    """The device of computations, from the enclosing scopes.

    From the innermost scope outwards: a setter gets the merged device of the scopes inside it, and its answer wins over
    the scopes outside it.
    """
    found = Device()
    for scope in reversed(_scopes.get()):
        found = scope.merge(found) if isinstance(scope, Device) else scope.compute(found)
    return found


@record
class DeviceFilters:
    """Names tasks as TensorFlow's `device_filters` do: `/job:ps`, `/job:worker/task:1`. None: all tasks.

    A task always sees itself and the chief.
    """

    devices: tuple[Device, ...] | None = None

    @staticmethod
    def parse(filters: Sequence[str | Device] | None, cluster: ClusterSpec) -> DeviceFilters:
        """The filters in these strings, checked against `cluster` if it has jobs.

        Raises ConfigError for anything but a list, for a string that is not a device, has no job or more than job and
        task, and for one that matches no task of the cluster.
        """
        if filters is None:
            return DeviceFilters()
        if isinstance(filters, str | Device) or not hasattr(filters, "__iter__"):
            raise ConfigError(f"device_filters: got {filters!r}, wanted a list such as ['/job:ps']")
        return DeviceFilters(tuple(_checked_filter(one, cluster) for one in filters))

    def sees(self, job: str, task: int) -> bool:
        """Whether the filters name this task."""
        return self.devices is None or any(
            device.job == job_name(job) and device.task in (None, task) for device in self.devices
        )

    def check(self, name: str, job: str, tasks: Sequence[int]) -> None:
        """Raise ConfigError if a run's plan has tasks of a job that the task `name` does not see."""
        hidden = [task for task in tasks if not self.sees(job, task)]
        if hidden:
            names = ", ".join(f"{job}:{task}" for task in hidden)
            raise ConfigError(
                f"{name} needs {names} for the run's plan, but its device_filters name {self} only; add '/job:{job}'"
            )

    def __str__(self) -> str:
        return ", ".join(map(str, self.devices or ())) or "none"


def _checked_filter(one: str | Device, cluster: ClusterSpec) -> Device:
    if not isinstance(one, str | Device):
        raise ConfigError(f"device_filters: got {one!r}, wanted strings such as '/job:ps'")
    try:
        device = Device(one)
    except ValueError as error:
        raise ConfigError(f"device_filters: {error}") from None
    if device.job is None or device.replica is not None or device.device_type is not None:
        raise ConfigError(f"device_filters: got {str(one)!r}, wanted a job or a task, '/job:ps' or '/job:ps/task:0'")
    device = Device(device, job=job_name(device.job))
    assert device.job is not None
    if cluster and (device.job not in cluster.jobs or device.task not in (None, *cluster.task_indices(device.job))):
        known = ", ".join(map(str, cluster.tasks()))
        raise ConfigError(f"device_filters: got {str(one)!r}, wanted tasks of the cluster: {known}")
    return device
