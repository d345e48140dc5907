"""A host that joins: the names that it asks for, the file with its token, and what it says when that cannot be."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flexmarl.contracts.node_joining import NAME, NodeJoinRequest
from flexmarl.store import schema
from workers import join as program
from workers import settings
from workers.door import joining, token_file
from workers.door.address import DoorAddress
from workers.errors import JoinRefused, SettingsError

REQUEST = NodeJoinRequest(node="far-1", pool="far-1", host_name="far-1", agent_version="1", devices=[])


class Service:
    """Stands in the place of the web service; answers what it was told to, the last answer again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = []
        self.seen: list[tuple[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.seen.append((f"{self.command} {self.path}", self.headers.get("Authorization", "")))
                status, body = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_GET = do_POST = _answer

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/base"


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def state(of: str) -> dict[str, object]:
    return {"state": of, "node": "far-1", "pool": "far-1", "expires_in_s": 3600.0}


def joined(home: Path, token: str = "fmn_x") -> Path:
    token_file.keep_waiting(home, DoorAddress("https://flex.test", token))
    return token_file.keep_token(home)


def test_processes_find_the_token_of_a_host_that_joined(tmp_path: Path) -> None:
    path = joined(tmp_path)
    config = settings.load({"FLEXMARL_HOME": str(tmp_path)})
    assert config.door == DoorAddress("https://flex.test", "fmn_x", str(path))
    assert (config.control_url, config.database_url, config.node) == ("https://flex.test", "", "")
    moved = settings.load({"FLEXMARL_HOME": str(tmp_path), "FLEXMARL_CONTROL_URL": "https://new.test/"})
    assert moved.door == DoorAddress("https://new.test", "fmn_x", str(path))
    told = {"FLEXMARL_NODE_TOKEN": "fmn_y", "FLEXMARL_CONTROL_URL": "https://other.test"}
    assert settings.load({"FLEXMARL_HOME": str(tmp_path), **told}).door == DoorAddress("https://other.test", "fmn_y")


def test_a_host_with_the_secrets_takes_no_token_from_a_file(tmp_path: Path) -> None:
    joined(tmp_path)
    secrets = {"DATABASE_URL": "postgresql://h/d", "REDIS_URL": "redis://h", "FLEXMARL_CLUSTER_KEY": "k"}
    assert settings.load({"FLEXMARL_HOME": str(tmp_path), **secrets}).door is None


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    joined(tmp_path).chmod(0o640)
    with pytest.raises(SettingsError, match="mode 600"):
        settings.load({"FLEXMARL_HOME": str(tmp_path)})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "https://flex.test"}', '{"url": "", "token": "fmn_x"}'])
def test_a_file_that_holds_no_token_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    joined(tmp_path).write_text(text)
    with pytest.raises(SettingsError, match=r"node-token\.json"):
        settings.load({"FLEXMARL_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("host", "node"),
    [("Trainer_1.Example.Org", "trainer_1.example.org"), ("-a b-", "a-b"), ("ß", "node"), ("x" * 63 + ".y", "x" * 63)],
)
def test_the_name_to_ask_for_is_made_of_the_hosts(host: str, node: str) -> None:
    names = joining.wished(host=host)
    assert names == joining.Wished(node, node)
    assert NAME.fullmatch(node)
    assert joining.wished("a", "b", host) == joining.Wished("a", "b")


def test_a_service_that_is_away_or_full_is_waited_for(service: Service, tmp_path: Path) -> None:
    full = {"code": "join_full", "detail": "as many requests wait as may"}
    service.answers = [(503, full), (429, {}), (500, {}), (200, state("waiting")), (502, {}), (200, state("approved"))]
    waits: list[float] = []
    assert joining.join(tmp_path, service.url, REQUEST, lambda code: None, waits.append).state == "approved"
    assert len(waits) == 4
    assert {seen for seen, _ in service.seen} == {"POST /base/nodes/join", "GET /base/nodes/join"}
    assert len({token for _, token in service.seen}) == 1


def test_a_key_that_is_taken_is_drawn_again(service: Service, tmp_path: Path) -> None:
    service.answers = [(409, {"code": "join_key_taken"}), (200, state("approved"))]
    joining.join(tmp_path, service.url, REQUEST, lambda code: None)
    first, second, third = (token for _, token in service.seen)
    assert (first != second, second == third) == (True, True)
    kept = token_file.read_token(tmp_path)
    assert kept is not None
    assert f"Bearer {kept.token}" == second


@pytest.mark.parametrize("code", ["join_invalid", "join_unknown", "join_too_large"])
def test_what_waiting_does_not_mend_ends_with_its_reason(service: Service, tmp_path: Path, code: str) -> None:
    service.answers = [(422, {"code": code, "detail": "because"})]
    with pytest.raises(JoinRefused, match="because"):
        joining.join(tmp_path, service.url, REQUEST, lambda shown: None)


def test_the_program_says_what_to_run_and_is_done_when_it_has_joined(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY", "FLEXMARL_NODE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEXMARL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(program.reporting, "configure", lambda process: None)
    service.answers = [(200, state("waiting")), (200, state("approved"))]
    program.main([f"{service.url}/", "--name", "far-1"])
    said = capsys.readouterr().out
    assert "Code to compare: " in said
    assert "python -m workers.run --role rollout" in said
    service.answers = [(200, {"node": "far-1", "pool": "far-1", "schema": schema.VERSION})]
    program.main([service.url])
    assert "has joined" in capsys.readouterr().out
    assert service.seen[-1][0] == "GET /base/nodes/hello"
    service.answers = [(401, {"detail": "the node token of far-1 is revoked"}), (200, state("approved"))]
    program.main([service.url])
    assert "holds no more" in capsys.readouterr().out
    assert len({token for _, token in service.seen}) == 2, "a host that was revoked asks with another token"


@pytest.mark.parametrize("name", ["FLEXMARL_NODE_TOKEN", "DATABASE_URL"])
def test_a_host_that_has_a_way_in_does_not_ask(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings.joining("https://flex.test", "fmn_x", {"FLEXMARL_HOME": str(tmp_path), name: "x"})
