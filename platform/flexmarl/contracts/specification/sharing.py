"""Sharing: rollouts in words that installations exchange. Code: `workers.rollout.sharing`, `workers.exchange`."""

from typing import Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.shared_rollouts import TASK_SET
from flexmarl.contracts.specification.reading import one_of, read_when

_EXCHANGE = read_when((one_of("type", "exchange"),))


class SharingOptions(Strict):
    """Rollouts that are exchanged with other installations."""

    type: Literal["none", "exchange"] = "none"
    """`exchange` (SAPO; experimental): what the run's episodes said is published in words, and some members of a group
    say what other installations published for the same task, scored by this run's own environment."""
    task_set: str = Field(default="default", pattern=TASK_SET, json_schema_extra=_EXCHANGE)
    """Name under which rollouts are published and read; installations that share use the same one."""
    foreign: int = Field(default=4, ge=0, le=128, json_schema_extra=_EXCHANGE)
    """Members of a group that come from others, if there are any; the run's own engines play the places that stay
    empty. At most half of `episodes_per_task`; 0: the run only publishes."""
    learn_from: Literal["all", "successes"] = Field(default="all", json_schema_extra=_EXCHANGE)
    """What is learned of the members from others. `all`: what their advantages say. `successes`: only those that did
    better than their group; others' failures get advantage 0, and still count in what the group is compared with."""
    publish: bool = Field(default=True, json_schema_extra=_EXCHANGE)
    """Whether what the run's own episodes said is published."""

    @property
    def on(self) -> bool:
        """Tell whether anything is exchanged."""
        return self.type == "exchange"

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data
