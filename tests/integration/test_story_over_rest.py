"""The first hour as a script does it: over REST, every act sent again because its answer was lost, and once the
connection is cut in the middle of an answer. Nothing happens twice."""

import http.client
import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.system import Api, ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow]

ENDLESS = {
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"tasks": 8},
    "budget": {"train_steps": 100_000, "target": None},
}
"""A run of short steps that ends when it is told to."""


@pytest.fixture
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


class Forgetful:
    """Sends every act twice under one key, as a client does that never saw the first answer."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def post(self, path: str, body: dict[str, Any]) -> Any:
        key = str(uuid.uuid4())
        self.cut(path, body, key)
        first = self.answered(path, body, key)
        again = self.answered(path, body, key)
        assert again == first
        return again

    def answered(self, path: str, body: dict[str, Any], key: str) -> Any:
        """Ask until the request that was cut off has been carried out."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.api.call("POST", path, body, Idempotency_Key=key)
            except ApiError as refused:
                if refused.problem.get("code") != "idempotency_in_progress" or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def cut(self, path: str, body: dict[str, Any], key: str) -> None:
        """Send the request and break the connection before any of the answer is read."""
        place = urlsplit(self.api.base)
        assert place.hostname is not None
        text = json.dumps(body)
        with socket.create_connection((place.hostname, place.port or 80), timeout=10) as raw:
            head = (
                f"POST /api/v1{path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {self.api.token}\r\n"
                f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {len(text)}\r\n\r\n{text}"
            )
            raw.sendall(head.encode())


def test_a_script_trains_a_team_though_connections_break(system: System) -> None:
    api = system.api()
    script = Forgetful(api)
    asked = {"template": "reference_game", "overrides": ENDLESS}
    plan = api.call("POST", "/runs/plan", asked)
    assert plan["plan_token"]
    made = script.post("/runs", {**asked, "name": "by script", "start": True})
    assert sum(row["name"] == "by script" for row in api.get("/runs")["results"]) == 1, "one request made one run"
    run = api.wait(made["id"], lambda row: row["step"] >= 3, 180)
    script.post(f"/runs/{run['id']}/actions/pause", {})
    paused = api.wait(run["id"], lambda row: row["status"] == "paused", 90)
    script.post(f"/runs/{run['id']}/actions/resume", {})
    resumed = api.wait(run["id"], lambda row: row["step"] > paused["step"], 90)
    assert resumed["status"] == "running"

    events, after = [], 0
    while rows := (page := api.get(f"/runs/{run['id']}/events?after={after}&limit=50"))["results"]:
        events += [row["seq"] for row in rows]
        after = page["next_after"]
        if len(rows) < 50:
            break
    assert events == list(range(1, len(events) + 1)), "the log is read whole, in order, without a gap"

    clone = script.post(f"/runs/{run['id']}/actions/clone", {"overrides": {"budget": {"train_steps": 5}}})
    new = clone["id"] if "id" in clone and "spec" in clone else clone["result"]["id"]
    assert api.run(new)["spec"]["budget"]["train_steps"] == 5
    script.post(f"/runs/{run['id']}/actions/stop", {})
    ended = api.finish(run["id"], 90)
    assert ended["status"] == "stopped"
    with pytest.raises(ApiError) as refused:
        api.act(run["id"], "pause")
    assert refused.value.status == 409
    assert api.consistency(run["id"])["ok"]
    trajectory = api.get(f"/runs/{run['id']}/trajectories?limit=1")["results"][0]["id"]
    turns = api.get(f"/runs/{run['id']}/trajectories/{trajectory}")["turns"]
    assert all(turn["response_tokens"] and not turn["unreadable"] for turn in turns)


def test_a_stream_that_breaks_goes_on_where_it_was(system: System) -> None:
    api = system.api()
    run = api.create_run(template="reference_game", name="streamed", overrides=ENDLESS)
    seen: list[int] = []
    last = ""
    try:
        for _ in range(3):
            last = listen(api, run["id"], last, seen, events=4)
    finally:
        api.act(run["id"], "kill")
    assert seen == sorted(seen), "a sequence never goes back"
    assert len(set(seen)) > 3, "the run went on meanwhile, and the stream told"


def listen(api: Api, run_id: str, last: str, seen: list[int], events: int) -> str:
    """Read some events of a run's stream, break off, and return the id of the last one."""
    place = urlsplit(api.base)
    connection = http.client.HTTPConnection(place.netloc, timeout=90)
    headers = {"Authorization": f"Bearer {api.token}", **({"Last-Event-ID": last} if last else {})}
    connection.request("GET", f"/api/v1/stream?topics=run:{run_id}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    deadline = time.monotonic() + 240
    while events:
        line = answer.readline().decode().strip()
        if time.monotonic() > deadline:
            run = api.run(run_id)
            pytest.fail(f"nothing was told any more; the run is {run['status']} at step {run['step']}: {run['reason']}")
        if line.startswith("id: "):
            last = line.removeprefix("id: ")
        if line.startswith("data: "):
            seen.append(json.loads(line.removeprefix("data: "))["seq"])
            events -= 1
    connection.close()
    return last
