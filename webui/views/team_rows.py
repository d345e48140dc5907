"""Saved teams as rows of a list."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from flexmarl.contracts.specification.team_settings import TeamSettings
from flexmarl.controlplane.agents import queries as agents
from webui import reading


def team_rows(teams: Sequence[Any]) -> list[dict[str, Any]]:
    """Return teams, of those that `queries.teams` returned, with the marks of their seats."""
    settings = agents.newest_settings(teams)
    return [_row(one, settings[one.pk]) for one in teams]


def _row(team: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    row = agents.team_row(team)
    return {**row, "marks": reading.role_marks(seats_of(settings), row["project"])}


def settings_of(settings: Mapping[str, Any]) -> TeamSettings | None:
    """Read settings that were saved; None where they name a plug-in that is not here any more."""
    try:
        return TeamSettings.model_validate(settings)
    except ValidationError:
        return None


def seats_of(settings: Mapping[str, Any]) -> list[str]:
    """List the seats of a team in the order of its graph."""
    team = settings_of(settings)
    return list(settings["agents"]) if team is None or team.graph is None else [one.name for one in team.graph.seats()]
