"""What a worker of the tests runs: steps of a small model, then a line of what came of it.

Its gradient of "count" is -1 and the rate is 1, so that "count" tells how many pushes were applied.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import numpy as np

import dps


def main(update: str, steps: int, pause_s: float, pull_s: float, timeout_s: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 300)).astype(np.float32)
    params = {"w": rng.normal(size=(300, 200)).astype(np.float32), "count": np.zeros((), np.float32)}
    acknowledged, late = 0, []
    with dps.Server.from_env() as server:
        mine = x[server.task :: 2]
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update=update, timeout=timeout_s) as session:
            for _ in range(steps):
                while True:
                    try:
                        values = session.pull(timeout=pull_s)
                        break
                    except dps.DeadlineExceeded as error:
                        late.append(str(error))
                        print(error, flush=True)
                    if len(late) > 20:
                        raise SystemExit(1)
                gradient = 1e-3 * mine.T @ (mine @ values["w"])
                pushed = session.push_async({"w": gradient, "count": np.float32(-1)})
                while True:
                    try:
                        acknowledged += pushed.result(pull_s).accepted
                        break
                    except dps.DeadlineExceeded as error:
                        late.append(str(error))
                        print(error, flush=True)
                    if len(late) > 20:
                        raise SystemExit(1)
                print(f"acknowledged {acknowledged}", flush=True)
                time.sleep(pause_s)
            values = session.pull()
            lanes = [bool(peer.lane.on) for peer in session._connection.peers.values()]
            found = {
                "step": session.global_step, "acknowledged": acknowledged, "count": float(values["count"]),
                "bits": hashlib.sha256(values["w"].tobytes()).hexdigest(), "late": late, "lanes": lanes,
            }  # fmt: skip
            print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
