"""A run that was played, with a talking engine: what tests of the playground's dialect begin with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler
from django.db import close_old_connections

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.actions import create_token
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.language.chat_format import ChatFormat
from tests.support.chat_templates import END, MARKS, tokenizer
from tests.support.played import Played, play
from tests.support.store_story import digest
from tests.support.talking_engine import TalkingEngine, serving

MARKED = tokenizer(MARKS)
"""A language model's tokenizer, with marks of thoughts and calls."""
SHARED = {"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}}


@dataclass
class Stage:
    """A run that was played, with a live engine that holds version 1 and a node beside it."""

    run: Run
    played: Played
    engine: TalkingEngine
    client: openai.OpenAI
    name: str

    def live(self, version: int | None) -> None:
        """Let the run's engine hold a version, or none."""
        conn, lease = store_connection(), self.played.leases[DeviceUse.ENGINE]
        conn.execute("UPDATE store.lease SET endpoint = %s WHERE id = %s", [self.engine.url, lease])
        conn.execute("DELETE FROM store.engine_policy WHERE lease_id = %s", [lease])
        if version is not None:
            conn.execute(
                "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
                "VALUES (%s, 'e1.1.1', 'solver', %s, %s)",
                [lease, version, digest(version)],
            )

    def node(self, *answers: tuple[int, dict[str, Any]]) -> None:
        """Let the node say these, one after the other."""
        address = self.engine.url.removeprefix("http://")
        store_connection().execute("UPDATE store.node SET address = %s, heartbeat_at = now()", [address])
        self.engine.node[:] = answers

    def speaks(self, template: str) -> None:
        """Let the agents be of a language model, with this chat template; before anything is asked of them."""
        ends = (MARKED.token_to_id(END),)
        store_connection().execute(
            "UPDATE store.tokenizer SET body = %s, chat = %s WHERE run_id = %s",
            [MARKED.to_str(), ChatFormat(template=template, stop=ends).dump(), self.run.no],
        )

    def will_say(self, *texts: str) -> None:
        """Put down what the engine replies next."""
        self.engine.replies += [MARKED.encode(text + END).ids for text in texts]

    def prompts(self) -> list[str]:
        """Return what the engine was asked, as text."""
        return [MARKED.decode(asked["prompt"][0], skip_special_tokens=False) for asked in self.engine.asked]

    def chat(self, content: str = "red blue", **more: Any) -> Any:
        more.setdefault("model", self.name)
        return self.client.chat.completions.create(messages=[{"role": "user", "content": content}], **more)


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """Requests stay inside the test's transaction: their ends must not close its connection."""
    for signal in (signals.request_started, signals.request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (signals.request_started, signals.request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def client_for() -> Callable[..., openai.OpenAI]:
    def make(user: Any, scopes: list[str] | None = None) -> openai.OpenAI:
        _, text = create_token(actor_of_user(user), "t", scopes)
        return openai.OpenAI(
            base_url="http://testserver/v1",
            api_key=text,
            max_retries=0,
            http_client=httpx2.Client(transport=httpx2.WSGITransport(app=WSGIHandler())),
        )

    return make


@pytest.fixture
def stage(editor, make_run, client_for) -> Iterator[Stage]:
    run = make_run(editor, RunStatus.RUNNING, agents=SHARED)
    with serving(TalkingEngine()) as engine:
        found = Stage(run, play(run), engine, client_for(editor, ["models:use"]), f"{run.key}/speaker")
        found.live(1)
        yield found


def refused(call: Callable[[], Any], kind: type[openai.APIStatusError] = openai.BadRequestError) -> dict[str, Any]:
    with pytest.raises(kind) as caught:
        call()
    body = caught.value.body
    assert isinstance(body, dict)
    assert set(body) == {"message", "type", "param", "code", "request_id"}
    return body
