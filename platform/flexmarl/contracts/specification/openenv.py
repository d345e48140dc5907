"""An environment of OpenEnv whose server runs elsewhere already: where, and how its episodes are played."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from flexmarl.contracts.specification.environment_base import EnvironmentFacts, EnvironmentOptions, RoleFacts

PLAYER = "player"


class OpenEnvUrl(EnvironmentOptions):
    """A server of OpenEnv that you run already; each episode is a session over its websocket.

    Score: the server's own. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    type: Literal["openenv_url"] = "openenv_url"
    url: str = Field(
        default="wss://environments.example.org/ws",
        pattern=r"^wss?://[^\s/?#@]+(/[^\s?#]*)?/ws$",
        max_length=500,
        examples=["wss://environments.example.org/ws"],
    )
    """URL of the server's websocket. Its host must be allowed on the rollout workers; redirects are not followed."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["SHOP_KEY"])
    """Name of the secret sent as a bearer token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the rollout workers.
    Empty: none."""
    options: Annotated[dict[str, JsonValue], Field(max_length=64)] = {}
    """What `reset` is told beside a seed and a name of the episode."""
    episode_reward: Literal["sum", "last"] = "sum"
    """What an episode is worth: the sum of its rewards, or the last of them."""
    unfinished_reward: float | None = Field(default=None, ge=-1e9, le=1e9)
    """What an episode is worth that ends before the server gave any reward; absent: it fails, since that is not 0."""
    best_reward: float = Field(default=1.0, gt=0.0, le=1e9)
    """Highest reward of an episode, against which scores are shown."""
    max_turns: int = Field(default=16, ge=1, le=1000)
    """Turns of the agent after which an episode ends and is scored as it stands."""
    reply_tokens: int = Field(default=64, ge=1, le=16_384)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""
    setup_timeout_s: float = Field(default=120.0, gt=0.0, le=600.0)
    """Timeout for the start of an episode. A server without a free session is asked again until then."""
    step_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Timeout for the server's answers to a move."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for the end of a session; the episode counts nevertheless."""

    def facts(self) -> EnvironmentFacts:
        role = RoleFacts(PLAYER, 1, self.max_turns, opens=True)
        best = self.best_reward
        return EnvironmentFacts("OpenEnv server", (role,), None, best, best, "its last reward is more than 0")
