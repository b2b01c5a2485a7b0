"""One trainer and four rollout processes, which play CartPole with the weights that it publishes. It learns from that.

A rollout process puts new weights in place between two episodes, and stamps each episode with the number of the version
and a checksum of the weights that played it. Needs gymnasium (`pip install "dps[gymnasium]"`).

    python examples/rollouts.py                                 all on this machine
    dps launch --ps 2 --workers 1 examples/rollouts.py          the worker trains, and starts the rollout processes
    python examples/rollouts.py --target 127.0.0.1:2220         one more rollout process, for the run at this address
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np

import dps

try:
    import gymnasium
except ImportError:
    sys.exit('rollouts.py: gymnasium is not installed; get it by: pip install "dps[gymnasium]"')
OVER = dps.QueueClosed, dps.TaskLost  # the trainer has closed the queue; or the run has ended


def play(target: str) -> None:
    """Play with the newest weights, at first with zeros, until the trainer closes the queue of episodes."""
    params, game, rng = {"weights": np.zeros(4, np.float32)}, gymnasium.make("CartPole-v1"), np.random.default_rng()
    with dps.Server.client(target) as server, dps.Follower(server, dtype=None) as follower, suppress(*OVER):
        queue = dps.data.queue(server, "episodes")
        while True:
            follower.swap(out=params)  # the newest version, if it is not in place
            seen, right, (state, _), ends = list[Any](), list[bool](), game.reset(), [False]
            while not any(ends):  # the pole has fallen, or 500 steps are over
                seen.append(state)
                right.append(rng.random() < 1 / (1 + np.exp(-state @ params["weights"])))
                state, _, *ends, _ = game.step(int(right[-1]))
            stamp = {"version": getattr(follower.published, "number", 0), "crc": crc32(params["weights"].tobytes())}
            queue.put({**stamp, "seen": np.stack(seen), "right": np.array(right)})


def gradient(weights: np.ndarray, episodes: list[Any]) -> np.ndarray:
    """The policy gradient: what was done longer before the end of its episode than most should become more likely."""
    seen, right = (np.concatenate([episode[name] for episode in episodes]) for name in ("seen", "right"))
    left = np.concatenate([1 - 0.99 ** np.arange(len(episode["right"]), 0, -1) for episode in episodes])
    gain = (left - left.mean()) / (left.std() + 1e-6) / len(left)
    return np.asarray(seen.T @ (gain * (1 / (1 + np.exp(-seen @ weights)) - right)), np.float32)


def train(server: dps.Server, goal: float = 195.0) -> None:
    """Learn until the last 100 episodes have lasted `goal` steps on average."""
    params, lasted, behind, wrong = {"weights": np.zeros(4, np.float32)}, list[int](), list[int](), 0
    queue, crcs = dps.data.queue(server, "episodes", capacity=4), {0: crc32(params["weights"].tobytes())}
    with dps.Session(server, params, optimizer=dps.optim.Adam(0.1), partitioner=dps.partition.Fixed(2)) as session:
        players = [subprocess.Popen([sys.executable, __file__, "--target", server.target]) for _ in range(4)]
        while np.mean(lasted[-100:] or 0) < goal:
            published = session.publish()
            params = session.pull(published=published)
            crcs[published.number] = crc32(params["weights"].tobytes())
            episodes = [queue.get() for _ in range(16)]
            wrong += sum(crcs.get(episode["version"]) != episode["crc"] for episode in episodes)
            behind += [published.number - episode["version"] for episode in episodes]
            lasted += [len(episode["right"]) for episode in episodes]
            session.step({"weights": gradient(params["weights"], episodes)})
            print(f"update {session.global_step:3d}  mean return {np.mean(lasted[-100:]):.1f}", flush=True)
        queue.close()
        print("the rollout processes ended with", [player.wait() for player in players])
    print(f"{len(lasted)} episodes, {wrong} of a wrong version, {np.mean(behind):.2f} versions behind on average")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A trainer and rollout processes on CartPole.")
    parser.add_argument("--target", help="only play, for the run whose chief is at this address")
    target = parser.parse_args().target
    play(target) if target else train(dps.Server.from_env(local=True))
