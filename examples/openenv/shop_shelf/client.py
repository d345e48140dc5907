"""Client of the shop shelf, for programs that speak with its server."""

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import ShopShelfAction, ShopShelfObservation


class ShopShelfEnv(EnvClient[ShopShelfAction, ShopShelfObservation, State]):
    """A session of its server."""

    def _step_payload(self, action: ShopShelfAction) -> dict:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict) -> StepResult[ShopShelfObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = ShopShelfObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)
