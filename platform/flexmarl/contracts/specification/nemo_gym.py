"""An environment of NeMo Gym whose resources server runs elsewhere already: where, and how its episodes are played."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.dataset import RowTasks
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, RoleFacts
from flexmarl.contracts.specification.openenv import PLAYER

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class NemoGymUrl(RowTasks):
    """A resources server of NeMo Gym that you run already; tasks are the rows of its data, imported as a dataset.

    Score: the server's own. For language models with a chat template.
    """

    isolated: ClassVar[bool] = True
    tells_task: ClassVar[bool] = False

    type: Literal["nemo_gym_url"] = "nemo_gym_url"
    url: str = Field(
        default="https://gym.example.org",
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        max_length=500,
        examples=["https://gym.example.org"],
    )
    """URL of the resources server, below which its endpoints are. Its host must be allowed on the rollout workers;
    redirects are not followed."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["GYM_KEY"])
    """Name of the secret sent as a bearer token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the rollout workers.
    Empty: none."""
    protocol: Literal["tools", "gymnasium"] = "tools"
    """What the server speaks: `tools` begins with /seed_session, calls tools, and ends with /verify; `gymnasium` begins
    with /reset, and each reply is a /step."""
    evaluation_rows: Literal["held_out", "training"] = "held_out"
    """Rows that evaluations play: those held out; or those trained on, where all rows ask the same and the server makes
    each task anew."""
    best_reward: float = Field(default=1.0, gt=0.0, le=1e9)
    """Highest reward of an episode, against which scores are shown; an episode that reaches it is solved."""
    max_turns: int = Field(default=16, ge=1, le=1000)
    """Turns of the agent after which an episode ends and is scored as it stands."""
    reply_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens in a reply; a row's `max_output_tokens` and `sampling.max_tokens` of an agent may set fewer."""
    setup_timeout_s: float = Field(default=120.0, gt=0.0, le=600.0)
    """Timeout for the start of an episode. A server that is full (status 429 or 503) is asked again until then."""
    step_timeout_s: float = Field(default=60.0, gt=0.0, le=600.0)
    """Timeout for the server's answers to a turn: to all of its calls of tools, or to its step."""
    score_timeout_s: float = Field(default=120.0, gt=0.0, le=600.0)
    """Timeout for the reward of an episode that is over."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for /close, where the server says that it has one; the episode counts nevertheless."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse an evaluation of more rows than are held out, once they are known and where they are played."""
        if self.evaluation_rows == "held_out":
            yield from super().refusals(spec)

    def facts(self) -> EnvironmentFacts:
        role = RoleFacts(PLAYER, 1, self.max_turns, opens=True)
        best = self.best_reward
        return EnvironmentFacts("NeMo Gym server", (role,), None, best, best, "its reward is the best one")
