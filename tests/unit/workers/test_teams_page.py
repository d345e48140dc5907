"""docs/teams.md, followed to the letter: its team resolves, and its episode goes as it says."""

import re
import textwrap
from pathlib import Path

import yaml

from flexmarl.contracts.resolve import load_templates, resolve
from flexmarl.contracts.specification.graphs import GRAPH, GraphOptions
from workers.rollout.environments.base import Reply
from workers.rollout.environments.questions import Conversation
from workers.rollout.environments.registry import family_of
from workers.rollout.environments.sums import Sum

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "teams.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^ +```{language}\n(.*?)^ +```$", TEXT, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def episode_of(graph: GraphOptions, replies: list[str]) -> str:
    """Play the page's sum, written as the page writes it."""
    episode, lines, left = Conversation(Sum((3, 4)), graph, 24), [], list(replies)
    while asks := episode.asks():
        said = []
        for ask in asks:
            read = "\n".join(message.content for message in ask.messages)
            lines.append(textwrap.indent(f"{ask.role} reads: {read}", "  ").removeprefix("  "))
            said.append(Reply(ask.role, left.pop(0)))
            lines.append(f"{ask.role} says: {said[-1].text}")
        episode.act(said)
    outcome = episode.outcome()
    scores = ", ".join(f"{role} {score:g}" for role, score in outcome.scores.items())
    return "\n".join([*lines, f"scores: {scores}; team {outcome.team_score:g}"])


def test_the_team_of_the_page_can_be_started_and_talks_as_it_says() -> None:
    document = {key: value for block in blocks("yaml") for key, value in yaml.safe_load(block).items()}
    spec = resolve(document).spec
    assert [role.name for role in spec.environment.facts().roles] == list(family_of(spec.environment).roles)
    (shown,) = blocks("text")
    graph = GRAPH.options(**document["environment"]["graph"])
    assert episode_of(graph, re.findall(r" says: (.*)", shown)) == shown.strip()


def test_the_page_names_every_graph_with_its_settings_and_every_template() -> None:
    rows = {
        name: set(re.findall(r"`(\w+)`", own)) for name, own in re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", TEXT, re.M)
    }
    for name, options in GRAPH.variants().items():
        assert rows[name] == set(options.model_fields) - {"type", "tokens"}, name
    teams = {name for name, one in load_templates().items() if {"graph", "assistant"} & set(one.spec["environment"])}
    assert teams <= set(re.findall(r"`(\w+)`", TEXT.partition("## Templates")[2]))
