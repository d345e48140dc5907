"""Questions about synthetic shops, after the two workloads of the FlexMARL paper: a planner asks who knows a table."""

from typing import ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.specification.environment_base import EnvironmentFacts, EnvironmentOptions
from flexmarl.contracts.specification.graphs import HubGraph, WorkerSeat, team_facts

TABLES: dict[str, tuple[str, str, str]] = {
    "merchant": ("analysis", "marketing", "after_sales"),
    "category": ("orders", "pricing", "stock"),
}
"""Who knows a table, by assistant."""


class Shop(EnvironmentOptions):
    """A planner answers a question about a shop by asking those who know one table each, as in FlexMARL's assistants.

    Score: 1 if the last number of the planner's answer is right. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True

    type: Literal["shop"] = "shop"
    assistant: Literal["merchant", "category"] = "merchant"
    """`merchant`: analysis, marketing and after-sales of a shop; `category`: orders, pricing and stock."""
    goods: int = Field(default=3, ge=1, le=12)
    """Goods of a shop: rows of each table."""
    largest: int = Field(default=20, ge=9, le=999)
    """Largest figure in a table."""
    figures: int = Field(default=2, ge=1, le=2)
    """Most figures, each of another table, that a question needs."""
    rounds: int = Field(default=2, ge=1, le=16)
    """Times that the planner may ask."""
    held_out: int = Field(default=20, ge=1, le=1000)
    """Questions kept for evaluation."""
    reply_tokens: int = Field(default=48, ge=1, le=4096)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""

    @property
    def graph(self) -> HubGraph:
        """Who speaks when."""
        return HubGraph(workers=tuple(WorkerSeat(name=name) for name in TABLES[self.assistant]), rounds=self.rounds)

    def facts(self) -> EnvironmentFacts:
        return team_facts("Shop", self.graph, self.reply_tokens, "the planner's answer is right")
