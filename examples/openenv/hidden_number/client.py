"""Client of the hidden number, for programs that speak with its server."""

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import HiddenNumberAction, HiddenNumberObservation


class HiddenNumberEnv(EnvClient[HiddenNumberAction, HiddenNumberObservation, State]):
    """A session of its server."""

    def _step_payload(self, action: HiddenNumberAction) -> dict:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict) -> StepResult[HiddenNumberObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = HiddenNumberObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)
