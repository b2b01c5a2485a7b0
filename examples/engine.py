"""How a plug-in is written that brings the weights of a run into an inference engine: between two requests.

`Engine` stands for an engine; it has the calls by which vLLM takes new weights, and each answer says its version, as
with SGLang. `Transfer` is the plug-in, in the form of vLLM's `WeightTransferEngine`. Run it: python examples/engine.py
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import dps


class Engine:
    def __init__(self, scores: np.ndarray) -> None:
        self.model, self.published = {"scores": scores.copy()}, dps.Published("", 0, "first values", 0)
        self.transfer, self._places, self._open = Transfer(), threading.Semaphore(0), threading.Event()
        self.resume_generation()

    def generate(self, prompt: str, seed: int) -> dict[str, Any]:
        self._open.wait()
        with self._places:
            for noise in np.random.default_rng(seed).gumbel(size=(40, 128)):  # a character by the one before
                prompt += chr((self.model["scores"][ord(prompt[-1])] + noise).argmax())
            return {"text": prompt, "weight_version": self.published.number, "lag_s": self.published.lag_s}

    def pause_generation(self) -> None:
        self._open.clear()
        for _ in range(4):  # wait for those that have begun: vLLM's mode="wait"
            self._places.acquire()

    def update_weights(self) -> None:
        self.published = self.transfer.receive_weights(self.model) or self.published

    def resume_generation(self) -> None:
        self._places.release(4)  # for 4 requests at a time
        self._open.set()


class Transfer:
    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.follower, self.stopped = dps.Follower(init_info["target"], dtype=None), threading.Event()

    def receive_weights(self, model: dict[str, np.ndarray]) -> dps.Published | None:
        return self.follower.swap(out=model)  # they are here already; a model on a GPU is filled from CPU tensors

    def follow(self, engine: Engine) -> None:
        """Have the engine take each new version. Until it has been fetched, the engine answers with the one before."""
        fetched = 0
        while not self.stopped.wait(0.002):
            if self.follower.fetched > fetched:
                fetched = self.follower.fetched
                engine.pause_generation()
                try:
                    engine.update_weights()
                finally:
                    engine.resume_generation()


if __name__ == "__main__":
    text = np.frombuffer("\n".join(topics.values()).encode("ascii", "ignore"), np.uint8)
    pairs = np.histogram2d(text[:-1], text[1:], bins=128, range=((0, 128), (0, 128)), density=True)[0]
    scores, adam, clients = np.zeros((128, 128), np.float32), dps.optim.Adam(0.1), ThreadPoolExecutor(8)
    server, engine, versions, answers = dps.Server.create_local_server(), Engine(scores), {0: scores}, list[Any]()
    engine.transfer.init_transfer_engine({"target": server.target})
    threading.Thread(target=engine.transfer.follow, args=(engine,), daemon=True).start()
    with server, dps.Session(server, {"scores": scores}, optimizer=adam) as session, engine.transfer.follower, clients:
        for step in range(120):
            likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)  # of each character after each
            session.push({"scores": (pairs.sum(axis=1, keepdims=True) * likely - pairs).astype(np.float32)})
            published = session.publish(f"step-{step}")
            scores = versions[published.number] = session.pull(published=published)["scores"]
            answers += [clients.submit(engine.generate, "The ", seed) for seed in (2 * step, 2 * step + 1)]
    texts, made, lags_s = zip(*[answer.result().values() for answer in answers], strict=True)
    wrong = sum(Engine(versions[n]).generate("The ", i)["text"] != texts[i] for i, n in enumerate(made))
    print(f"loss {-(pairs * np.log(likely)).sum():.2f}; at first {texts[0]!r}, at last {texts[-1]!r}")
    print(f"{len(made)} answers of {len(set(made))} versions, {wrong} wrong; lag {1000 * np.mean(lags_s):.0f} ms")
