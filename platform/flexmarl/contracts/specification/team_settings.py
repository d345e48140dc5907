"""What a team is in every run that names it: its graph, its agents, and their policies."""

from typing import Self

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.specification.graphs import GraphSpec
from flexmarl.contracts.specification.team import AgentSpec, PolicySpec


class TeamSettings(Strict):
    """Parts of a specification that describe a team; a run's environment says what the team is asked."""

    graph: GraphSpec | None = None
    """Who speaks when, and who reads what: `environment.graph` of the run. Without one the environment says it."""
    agents: dict[Name, AgentSpec] = Field(min_length=1, max_length=16)
    """Who takes the seats: exactly those of the graph, where there is one."""
    policies: dict[Name, PolicySpec] = {}
    """Settings of the policies that agents act with; the others get the defaults."""

    @model_validator(mode="after")
    def _agents_take_the_seats(self) -> Self:
        if self.graph is not None:
            seats = [seat.name for seat in self.graph.seats()]
            if missing := [name for name in seats if name not in self.agents]:
                raise ValueError(f"no agent takes the seat {missing[0]}; agents of this team: {', '.join(seats)}")
            if others := [name for name in self.agents if name not in seats]:
                raise ValueError(f"the graph has no seat {others[0]}; agents of this team: {', '.join(seats)}")
        used = {agent.policy or role for role, agent in self.agents.items() if agent.external is None}
        if unused := [name for name in self.policies if name not in used]:
            known = ", ".join(sorted(used))
            raise ValueError(f"no agent acts with the policy {unused[0]}; policies of this team: {known}")
        return self
