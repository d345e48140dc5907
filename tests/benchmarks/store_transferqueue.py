"""TransferQueue's side of the store's benchmark. Runs in its own virtual environment; see requirements-store.txt.

Reads one number of rows a line and answers with one JSON object a line. Every writer and reader is a Ray actor, that
is, a process; storage is the in-memory one of a plain installation, with two units. A reader waits for a batch, takes
its tensors, stacked, checksums every byte, and clears the batch: rows are gone when they are counted.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from store_rows import AGENTS, BATCH, READERS, WRITERS, agents_of, checksum, rows_of
from tensordict import TensorDict

FIELDS = ["ids", "logprobs"]


@ray.remote(num_cpus=0)
class Writer:
    """Puts its rows, a batch of one agent after the other."""

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)
        transfer_queue.init()
        self.number, self.client = number, transfer_queue.get_client()
        self.batches: list[tuple[str, TensorDict]] = []
        self.sum = 0

    def prepare(self, rows: int) -> int:
        """Make the batches of a round; returns the sum of their checksums."""
        if sum(len(batch) for _, batch in self.batches) != rows:
            made = [(agent, rows_of(self.number, index, rows // len(AGENTS))) for index, agent in enumerate(AGENTS)]
            self.sum = sum(checksum(arrays) for _, arrays in made)
            self.batches = [
                (agent, TensorDict({name: torch.from_numpy(array[i : i + BATCH]) for name, array in
                                    zip(FIELDS, arrays, strict=True)}, batch_size=min(BATCH, len(arrays[0]) - i)))
                for i in range(0, rows // len(AGENTS), BATCH) for agent, arrays in made
            ]  # fmt: skip
        return self.sum

    def put(self, round_number: int) -> None:
        """Put everything."""
        for agent, batch in self.batches:
            self.client.put(data=batch, partition_id=f"{agent}-{round_number}")


@ray.remote(num_cpus=0)
class Reader:
    """Consumes the rows of its agents."""

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)
        transfer_queue.init()
        self.agents, self.client = agents_of(number), transfer_queue.get_client()

    def consume(self, round_number: int, rows: int) -> int:
        """Read until every agent's rows came; returns the sum of their checksums."""
        left, found = dict.fromkeys(self.agents, rows // len(AGENTS)), 0
        while any(left.values()):
            came = 0
            for agent in self.agents:
                if left[agent]:
                    taken, added = self._batch(f"{agent}-{round_number}", min(BATCH, left[agent]))
                    left[agent], found, came = left[agent] - taken, found + added, came + taken
            if not came:
                time.sleep(0.002)
        return found

    def _batch(self, partition: str, size: int) -> tuple[int, int]:
        meta = self.client.get_meta(data_fields=FIELDS, batch_size=size, partition_id=partition, task_name="train")
        if meta.size == 0:
            return 0, 0
        data = self.client.get_data(meta)
        found = checksum(_stacked(data[name]).numpy() for name in FIELDS)
        self.client.clear_samples(meta)
        return meta.size, found


def _stacked(values: torch.Tensor) -> torch.Tensor:
    return torch.stack(list(values.unbind())) if values.is_nested else values


def main() -> None:
    """Serve rounds until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints is no answer
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="error")
    transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    writers = [Writer.remote(number) for number in range(WRITERS)]
    readers = [Reader.remote(number) for number in range(READERS)]
    ray.get([writer.prepare.remote(BATCH * len(AGENTS)) for writer in writers])
    print(json.dumps({"version": getattr(transfer_queue, "__version__", ""), "ray": ray.__version__}), file=answers)
    for round_number, line in enumerate(sys.stdin):
        rows = int(line)
        expected = sum(ray.get([writer.prepare.remote(rows // WRITERS) for writer in writers]))
        began = time.perf_counter()
        puts = [writer.put.remote(round_number) for writer in writers]
        found = sum(ray.get([reader.consume.remote(round_number, rows) for reader in readers]))
        ray.get(puts)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "whole": found == expected}), file=answers)
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
