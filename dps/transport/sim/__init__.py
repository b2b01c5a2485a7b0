"""The simulator: whole clusters in one process on a virtual clock, with faults. The same seed repeats the same run.

    world = World(seed=7, faults=[Kill("ps:0", at=3.0)])
    world.process("ps:0", serve, restarts=1)
    world.process("worker:0", train)
    world.run(until_s=60.0)
    print(world.trace_text())

Read `world.py` first, then `scheduler.py` (the clock and the tasks) and `fabric.py` (what happens to messages).
"""

from __future__ import annotations

from dps.transport.sim.calibration import Calibration, LaneCosts
from dps.transport.sim.machines import Compute, Handling, Machines
from dps.transport.sim.network import Network
from dps.transport.sim.process import SimProcess
from dps.transport.sim.scheduler import SimulationError
from dps.transport.sim.trace import TraceEvent
from dps.transport.sim.world import DiskFull, Fault, Kill, Partition, Pause, Slow, SlowDisk, World

__all__ = [
    "Calibration",
    "Compute",
    "DiskFull",
    "Fault",
    "Handling",
    "Kill",
    "LaneCosts",
    "Machines",
    "Network",
    "Partition",
    "Pause",
    "SimProcess",
    "SimulationError",
    "Slow",
    "SlowDisk",
    "TraceEvent",
    "World",
]
