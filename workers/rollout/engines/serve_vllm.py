"""The vLLM engine child: `python -m workers.rollout.engines.serve_vllm`, under the interpreter that has vLLM.

Invariants. vLLM runs inside this process, so its end takes everything along. Nothing is fetched from anywhere. A cause
that a restart does not mend (vLLM missing or broken, a model it does not serve) is said in the place of the ready line.
"""

import logging
import os
import sys
import traceback
from typing import NoReturn

from flexmarl.contracts.spec.experiment import ExperimentSpec
from workers import child_server
from workers.child import ChildConfig, ChildFailed, IntervalLog
from workers.models.architecture import UnsupportedModel
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import NotHeldError
from workers.rollout.engines.serving import serve_engine
from workers.rollout.engines.vllm_engine import VllmEngine
from workers.rollout.engines.vllm_models import VllmModel, vllm_model
from workers.rollout.engines.vllm_seat import Seat
from workers.transfer.local import LocalTier

ROWS = 256
"""Requests of one policy version in generation at once."""


class StatePlaneSource:
    """Brings a version's weights from the state plane, and makes the first seat of its policy ready meanwhile."""

    def __init__(self, engine: VllmEngine, config: ChildConfig, models: dict[str, VllmModel]) -> None:
        self._engine = engine
        self._plane = LocalTier(config.home)
        self._models = models

    def __call__(self, policy: str, digest: str) -> object:
        if policy not in self._models:
            raise NotHeldError(f"policy {policy!r} is not part of this run; it has {sorted(self._models)}")
        state = self._plane.get(digest)
        return self._engine.prepare(policy, state, self._models[policy].check(state))


def make_engine(config: ChildConfig, models: dict[str, VllmModel], rows: int = ROWS) -> VllmEngine:
    """Return an engine without policies yet. Raises EngineFailedError when vLLM cannot be imported."""
    try:
        from vllm.v1.engine.llm_engine import LLMEngine
    except Exception as error:  # a broken build raises whatever its extension modules raise
        raise EngineFailedError(f"vLLM cannot be imported by {sys.executable}: {error}") from error
    del LLMEngine  # imported now, so that the first load need not wait for it
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # that a CPU has no triton is no news
    return VllmEngine(lambda policy, words: Seat(models[policy], words, config.device, rows), rows)


def main() -> None:
    """Read the configuration from standard input and serve."""
    config = child_server.read_config()
    answer = child_server.take_standard_output()
    try:
        spec = ExperimentSpec.model_validate(config.spec)
        models = {name: vllm_model(policy.model) for name, policy in spec.policies.items()}
        engine = make_engine(config, models)
    except UnsupportedModel as refused:
        failed = ChildFailed("unsupported_model", str(refused), "choose another model, or resources.engine: torch")
    except EngineFailedError as broken:
        failed = ChildFailed("engine_failed", str(broken), "mend the environment of FLEXMARL_VLLM_PYTHON")
    else:
        source = StatePlaneSource(engine, config, models)
        _serve(config, engine, source, answer)
    child_server.say(answer, failed)
    sys.exit(1)


def _serve(config: ChildConfig, engine: VllmEngine, source: StatePlaneSource, answer: int) -> NoReturn:
    """Serve, then leave at once: taking vLLM apart in order takes longer than a parent waits, and may hang."""
    code = 1
    try:
        child_server.run_loop(serve_engine(config, engine, source, IntervalLog(), answer))
        code = 0
    except Exception:  # whatever broke generation: a fresh life follows, and these are the last words of this one
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
