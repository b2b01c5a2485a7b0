"""Device filters: which other tasks a task sees and connects to."""

from __future__ import annotations

from collections.abc import Sequence

from dps.cluster.device import Device
from dps.cluster.spec import ClusterSpec, job_name
from dps.errors import ConfigError
from dps.record import record


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
        return DeviceFilters(tuple(_checked(one, cluster) for one in filters))

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


def _checked(one: str | Device, cluster: ClusterSpec) -> Device:
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
