"""The engine child: `python -m workers.rollout.engines.serve`, hosted by a device worker."""

import argparse

from flexmarl.contracts.spec.experiment import ExperimentSpec
from workers import child_server
from workers.child import ChildConfig, IntervalLog
from workers.models.architecture import architecture_of
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.requests import NotHeldError
from workers.rollout.engines.serving import serve_engine
from workers.rollout.engines.torch_engine import TorchEngine
from workers.transfer.local import LocalTier

ROWS = 256
"""Requests of one policy version in generation at once: more keeps a tiny model busier, at little memory."""


class StatePlaneSource:
    """Brings a version's weights from the state plane into the engine's form."""

    def __init__(self, engine: TorchEngine, config: ChildConfig) -> None:
        self._engine = engine
        self._plane = LocalTier(config.home)
        spec = ExperimentSpec.model_validate(config.spec)
        self._sources = {name: policy.model for name, policy in spec.policies.items()}

    def __call__(self, policy: str, digest: str) -> Weights:
        if policy not in self._sources:
            raise NotHeldError(f"policy {policy!r} is not part of this run; it has {sorted(self._sources)}")
        return self._engine.prepare(self._plane.get(digest), architecture_of(self._sources[policy]))


def main() -> None:
    """Read the configuration from standard input and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="requests of one policy version generated at once")
    rows = parser.parse_args().rows
    config = child_server.read_config()
    prepare_torch(config.own_threads)
    engine = TorchEngine(config.device, rows, config.ordered)
    child_server.run_loop(serve_engine(config, engine, StatePlaneSource(engine, config), IntervalLog()))


def prepare_torch(threads: int) -> None:
    """One thread per process is the rule: a second one waits at barriers whenever the cores are shared."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)


if __name__ == "__main__":
    main()
