"""What a reward function makes of an episode, and by which names one fails."""

import json

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.reward import Brevity, EnvironmentReward
from flexmarl.contracts.specification.reward import ScoringService as ServiceSpec
from tests.support.scoring_service import ScoringService
from workers.external_access import ExternalAccess
from workers.rewards.base import Earned, Played, RewardFailed, TurnWords
from workers.rewards.functions import checked, reward_function

PLAYED = Played(
    4, 1, 2, "hot_cold", {"title": "find 3"},
    [TurnWords("hinter", 0, "", "a b c", 3), TurnWords("guesser", 0, "a b c", "n3", 1),
     TurnWords("hinter", 1, "", "a", 1)],
    {"guesser": 0.5, "hinter": 0.25}, 0.5, True, {"guesses": 1.0},
)  # fmt: skip
NOBODY = ExternalAccess()


def spec(**more) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {"agents": {"guesser": {}, "hinter": {}}, "environment": {"type": "hot_cold"}, **more}
    )


async def test_brevity_takes_each_role_s_tokens_off_its_own_score_and_all_off_the_team_s():
    earned = await reward_function(Brevity(cost_per_token=0.1), NOBODY)(PLAYED)
    assert earned.scores == pytest.approx({"guesser": 0.4, "hinter": -0.15})
    assert earned.team_score == pytest.approx(0.0)


async def asked_of(service: ScoringService, key: str = "", secret: str = "", allowed: bool = True) -> Earned:
    access = ExternalAccess(frozenset({service.host} if allowed else ()), {"JUDGE": key} if key else {})
    function = reward_function(ServiceSpec(url=service.url, secret=secret, timeout_s=30), access)
    try:
        return checked(await function(PLAYED), PLAYED)
    finally:
        await function.close()


async def test_a_service_is_sent_the_episode_and_its_answer_is_what_was_earned():
    async with ScoringService("sk-1") as service:
        earned = await asked_of(service, "sk-1", "JUDGE")
    assert earned == Earned({"guesser": 1.0, "hinter": 4.0}, 2.5, {"turns": 3.0}), "the team gets the mean unless said"
    (sent,) = service.asked
    assert (sent["environment"], sent["draw"], sent["member"], sent["solved"]) == ("hot_cold", 4, 1, True)
    assert sent["turns"][1] == {"role": "guesser", "turn": 0, "prompt": "a b c", "reply": "n3", "tokens": 1}
    assert "sk-1" not in json.dumps(sent)


@pytest.mark.parametrize(
    ("script", "reason", "may_pass"),
    [
        ((429, "later"), "rate_limited", True),
        ((503, "later"), "server_error", True),
        ((400, "what"), "refused", False),
        ((200, "nonsense"), "bad_reply: no scores", False),
        ((200, '{"scores": {"guesser": 1}}'), "bad_reply: scores of ['guesser'], where", False),
        ((200, '{"scores": {"guesser": 1, "hinter": 1}, "facts": {"x": 1e999}}'), "bad_reply", False),
    ],
)
async def test_a_service_that_gives_no_reward_says_why(script, reason, may_pass):
    async with ScoringService() as service:
        service.script = [script]
        with pytest.raises(RewardFailed) as failed:
            await asked_of(service)
    assert (reason in failed.value.reason, failed.value.may_pass) == (True, may_pass), failed.value.reason


async def test_only_hosts_that_the_installation_names_are_asked():
    async with ScoringService() as service:
        with pytest.raises(RewardFailed, match="host_not_allowed"):
            await asked_of(service, allowed=False)
        with pytest.raises(RewardFailed, match="secret_missing"):
            await asked_of(service, secret="JUDGE")
    assert service.asked == []


def test_the_environment_s_reward_is_no_function():
    with pytest.raises(LookupError):
        reward_function(EnvironmentReward(), NOBODY)
    assert isinstance(spec().reward, EnvironmentReward), "unless said otherwise"


def refused(**more) -> dict[str, str]:
    return {problem.pointer: problem.hint for problem in broken_rules(spec(**more))}


def test_an_unknown_reward_is_refused_with_those_there_are():
    with pytest.raises(SpecProblems) as problems:
        resolve({"agents": {}, "environment": {"type": "hot_cold"}, "reward": {"type": "judge"}})
    (problem,) = [one for one in problems.value.problems if one.pointer.startswith("/reward")]
    assert (problem.pointer, problem.code) == ("/reward/type", "unknown_value")
    assert all(name in problem.hint for name in ("environment", "brevity", "service"))


def test_what_a_reward_for_the_whole_episode_cannot_be_combined_with_is_refused():
    service = {"type": "service", "url": "http://judge.example.org/score"}
    assert refused(reward=service) == {}
    assert refused(reward={"type": "brevity"}, mechanisms={"ordered": True}) == {}
    assert "false" in refused(reward=service, mechanisms={"ordered": True})["/mechanisms/ordered"]
    per_turn = refused(reward={"type": "brevity"}, algorithm={"advantage": {"per_turn": True}})
    assert "environment" in per_turn["/algorithm/advantage/per_turn"]
    assert refused(reward={"type": "brevity", "timeout_s": 60, "wait_s": 5}) == {"/reward/wait_s": "Set 60."}
