"""A script that uses a cluster in Python: functions run, are read, fail and are stopped; then all ends."""

from __future__ import annotations

FUNCTIONS = """
import dps, numpy as np

def train(server, steps):
    with dps.Session(
        server, {"w": np.zeros(100, np.float32)}, optimizer=dps.optim.SGD(0.1), update="sync",
        hooks=[dps.StopAtStep(last_step=steps)]
    ) as session:
        while not session.should_stop():
            session.push({"w": session.pull()["w"] - 1})
    return server.task, session.global_step

def fail(server, what):
    raise ValueError(f"no data for {what}")

def endless(server):
    with dps.Session(server, {"w": np.zeros(100, np.float32)}, optimizer=dps.optim.SGD(0.1)) as session:
        while not session.should_stop():
            session.push({"w": session.pull()["w"] - 1})
"""


def script(cluster: str) -> str:
    """The script, for what makes a cluster with two ps and two workers."""
    return f"""
import os, time
import dps, numpy as np
import functions

if __name__ == "__main__":
    made = {cluster}
    with made as cluster:
        run = cluster.run(functions.train, 30)
        print(f"results: {{run.wait(timeout=60).results}}, history {{len(run.history) >= 30}}")
        with cluster.session() as reader:
            print("a reader sees:", reader.pull()["w"].shape)
        print(repr(cluster))
        try:
            cluster.run(functions.fail, 5).wait(timeout=60)
        except dps.DpsError as error:
            first, *others = str(error).splitlines()
            print("failed:", first, "|", *[line.strip() for line in others if "functions.py" in line])
        run = cluster.run(functions.endless)
        while not run.history:
            time.sleep(0.05)
        print("stopped:", run.stop(timeout=20).states())
        print("again:", cluster.run(functions.train, 40).wait(timeout=60).results)
        print("anew:", cluster.run(functions.train, steps=5, fresh=True).wait(timeout=60).results)
    made.stop()
    try:
        made.run(functions.train)
    except dps.ConfigError as error:
        print("after the end:", error)
    print("keys:", os.environ.get("DPS_KEYS"))
"""
