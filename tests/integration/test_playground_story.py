"""A team is talked to while it trains and after it has ended, by OpenAI's own client, through every real process."""

from collections.abc import Callable
from typing import Any

import openai
import psutil
import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.system import Api, System

pytestmark = [pytest.mark.services, pytest.mark.slow]

SPEC: dict[str, Any] = {
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "policies": {role: {"model": {"size": "S"}} for role in ("speaker", "listener")},
    "budget": {"train_steps": 60, "target": None},
    "evaluation": {"every_steps": 100, "tasks": 8},
    "checkpoints": {"every_steps": 100},
}


@pytest.fixture
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def engines_of_node(system: System) -> list[int]:
    """The processes that the node agent has started: only those are nobody's lease."""
    return [child.pid for child in psutil.Process(system.processes()["node"]).children()]


def client_of(api: Api) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.base}/v1", api_key=api.token, max_retries=20)


def test_a_team_answers_while_it_trains_and_after_it_has_ended(system: System) -> None:
    api = system.api()
    run = api.create_run(name="talked to", template="reference_game", spec=SPEC)
    run = api.wait(run["id"], lambda now: now["step"] >= 1, 240)
    client, model = client_of(api), f"{run['key']}/listener"
    assert model in {found.id for found in client.models.list()}

    question: dict[str, Any] = {"prompt": "hear ba ba", "temperature": 0, "seed": 1, "max_tokens": 3, "logprobs": 1}
    live = client.completions.create(model=model, **question)
    assert engines_of_node(system) == [], "an engine of the run answered"
    assert live.usage is not None
    assert live.usage.completion_tokens == 3
    version = live.model.partition("@")[2]

    if api.run(run["id"])["status"] == "running":
        api.act(run["id"], "stop")
    assert api.finish(run["id"], 240)["status"] in {"completed", "stopped", "cancelled"}
    ended = client.completions.create(model=f"{model}@{version}", **question)
    assert len(engines_of_node(system)) == 1, "a node brought one up"
    assert ended.choices[0].text == live.choices[0].text
    assert ended.system_fingerprint == live.system_fingerprint
    assert ended.choices[0].logprobs is not None
    assert live.choices[0].logprobs is not None
    assert ended.choices[0].logprobs.token_logprobs == pytest.approx(live.choices[0].logprobs.token_logprobs, abs=1e-4)

    messages: Any = [{"role": "user", "content": "hear ba ba"}]
    stream = client.chat.completions.create(
        model=f"{model}@{version}", messages=messages, stream=True, temperature=0, max_tokens=3
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert said == ended.choices[0].text
    newest = client.chat.completions.create(model=model, messages=messages)
    assert int(newest.model.partition("@")[2]) >= int(version)
    assert len(engines_of_node(system)) == 1, "one engine answers for all versions of a run"
    _words_of_training(system, run["no"], newest.choices[0].message.content or "")

    for _ in range(6):  # more than a web process has places: who leaves in the middle gives theirs back
        left = client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=512)
        next(iter(left))
        left.close()
    assert client.completions.create(model=model, **question).choices

    engine = psutil.Process(engines_of_node(system)[0])
    system.kill("node")
    assert psutil.wait_procs([engine], 60)[0] == [engine], "an engine dies with its node"
    assert client.completions.create(model=model, **question).choices, "the next node agent brings up another"


def test_a_program_asks_the_ended_run_with_a_serving_key(system: System) -> None:
    api = system.api()
    run = api.get("/runs?limit=1")["results"][0]
    model, address = f"{run['key']}/listener", f"/projects/{run['project']}/serving-keys"
    quotas = {"requests_per_minute": 5, "tokens_per_day": 40, "models": [model]}
    made = api.post(address, {"name": "program", **quotas})
    client = openai.OpenAI(base_url=f"{api.base}/v1", api_key=made["secret"], max_retries=0, timeout=60)
    assert [found.id for found in client.models.list()] == [model]
    messages: Any = [{"role": "user", "content": "hear ba ba"}]
    ask: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 3}
    whole = client.with_options(max_retries=20).chat.completions.create(**ask)
    parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == (
        whole.choices[0].message.content
    )
    assert parts[-1].usage == whole.usage
    assert whole.usage is not None
    charged = 2 * whole.usage.total_tokens
    assert wait_until(lambda: api.get(f"{address}/{made['id']}")["today"]["tokens"] == charged, 60)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**{**ask, "max_tokens": 40})
    assert (caught.value.code, caught.value.param) == ("quota_exceeded", "tokens_per_day")
    with pytest.raises(openai.NotFoundError, match=f"allowed: {model}"):
        client.chat.completions.create(**{**ask, "model": f"{run['key']}/speaker"})
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ask, response_format={"type": "json_object"})
    assert refused.value.param == "response_format"
    api.call("DELETE", f"{address}/{made['id']}")
    with pytest.raises(openai.AuthenticationError) as gone:
        client.chat.completions.create(**ask)
    assert gone.value.code == "invalid_api_key"


def _words_of_training(system: System, run_no: int, text: str) -> None:
    """A reply that nobody restricted has only words that the environment allowed."""
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT spec FROM store.run_state WHERE run_id = %s", [run_no]).fetchone()
    assert row is not None
    assert text
    assert not set(text.split()) & {"hear", "name", "ba"}
