"""The road of a node with a token: its settings, its messages, and a control plane that is away."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest

from flexmarl.store import schema
from flexmarl.store.control import leases
from tests.support.far_link import make_certificate
from workers import entry, settings
from workers.door.address import DoorAddress
from workers.door.broker import DoorBroker, News
from workers.door.client import Admitted, Door, DoorAway, DoorPool, admitted
from workers.door.waits import PATIENCE_S
from workers.entry import settled
from workers.errors import SettingsError

NOWHERE = DoorAddress("http://127.0.0.1:1", "fmn_x")


def told(tmp_path: Path, **more: str) -> dict[str, str]:
    given = {
        "FLEXMARL_HOME": str(tmp_path),
        "FLEXMARL_NODE_TOKEN": "fmn_x",
        "FLEXMARL_CONTROL_URL": "https://flex.test/a/",
    }
    return {name: value for name, value in {**given, **more}.items() if value}


def test_an_address_and_a_token_are_all_that_a_node_needs(tmp_path: Path) -> None:
    config = settings.load(told(tmp_path))
    assert config.door == DoorAddress("https://flex.test/a", "fmn_x")
    assert (config.database_url, config.redis_url, config.cluster_key, config.node) == ("", "", "", "")
    assert config.door.path("/nodes/hello") == "/a/nodes/hello"


@pytest.mark.parametrize("secret", ["DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY"])
def test_a_secret_beside_the_token_is_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(SettingsError, match=f"FLEXMARL_NODE_TOKEN and {secret}"):
        settings.load(told(tmp_path, **{secret: "x"}))


def test_a_token_without_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="FLEXMARL_CONTROL_URL is not set"):
        settings.load(told(tmp_path, FLEXMARL_CONTROL_URL=""))


def test_a_control_plane_that_is_away_is_a_database_that_is_away() -> None:
    with DoorPool(NOWHERE) as pool, pool.connection() as conn, pytest.raises(psycopg.OperationalError):
        leases.devices_of(conn, "far-1")


def test_a_process_that_waits_for_the_control_plane_can_be_stopped(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    config = replace(settings.load(told(tmp_path)), door=NOWHERE)
    with pytest.raises(SystemExit) as stopped:
        settled(config, stopping)
    assert stopped.value.code == 0


def test_a_service_that_does_not_know_its_name_says_which_setting_helps() -> None:
    class Unknown(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(400)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Unknown) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = DoorAddress(f"http://127.0.0.1:{server.server_port}", "fmn_x")
        with pytest.raises(DoorAway, match=r"answers 400; .* FLEXMARL_ALLOWED_HOSTS"):
            admitted(address)
        server.shutdown()


@contextmanager
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> Iterator[tuple[str, threading.Semaphore]]:
    """Yield the address of who reads requests and answers none, and what counts them."""
    certificate, key, read = tmp_path / "c.pem", tmp_path / "c.key", threading.Semaphore(0)
    make_certificate(certificate, key, "127.0.0.1")
    trusted, own = ssl.create_default_context(cafile=certificate), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    monkeypatch.setattr("workers.door.address._trusted", lambda: trusted)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            kept = []
            while True:
                try:
                    one = server.accept()[0]
                except OSError:
                    return
                kept.append(own.wrap_socket(one, server_side=True) if scheme == "https" else one)
                while b"\r\n\r\n" not in kept[-1].recv(65_536):
                    pass
                read.release()

        threading.Thread(target=serve, daemon=True).start()
        yield f"{scheme}://127.0.0.1:{server.getsockname()[1]}", read


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_whoever_waits_for_an_answer_is_told_soon_that_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with silent(tmp_path, monkeypatch, scheme) as (url, read):
        address = DoorAddress(url, "fmn_x")
        ended: list[float] = []

        def ask() -> None:
            with pytest.raises(DoorAway):
                leases.devices_of(Door(address), "far-1")  # type: ignore[arg-type]
            ended.append(time.monotonic())

        waiting = threading.Thread(target=ask, daemon=True)
        waiting.start()
        assert read.acquire(timeout=30)
        began = time.monotonic()
        address.waits.end()
        address.waits.end()
        waiting.join(30)
        ask()
        first, second = ended
        assert PATIENCE_S <= first - began < PATIENCE_S + 1.0
        assert PATIENCE_S <= second - first < PATIENCE_S + 1.0, "who asks later waits no longer either"


def test_what_is_not_declared_cannot_be_asked_for() -> None:
    with DoorPool(NOWHERE) as pool, pool.connection() as conn, pytest.raises(AttributeError):
        leases.expire(conn, 1)


def test_a_command_that_waits_or_is_worked_on_is_not_put_again() -> None:
    broker = DoorBroker(NOWHERE, "rollout", print, own_loop=False)
    broker.declare_queue("rollout.far")
    heard = News(queue="rollout.far", actor="play_groups", run_id=1, no=7)
    consumer = broker.consume("rollout.far", 4, 20)
    broker._heard(heard)
    broker._heard(heard)
    message = next(consumer)
    assert message is not None
    assert message.args == (1, 7)
    broker._heard(heard)
    assert next(consumer) is None, "it is worked on"
    consumer.ack(message)
    broker._heard(heard)
    again = next(consumer)
    assert again is not None, "its row is open again"
    consumer.nack(again)
    broker._heard(News(queue="device.other", actor="host_lease", run_id=1, no=8))
    assert next(consumer) is None


def test_words_wake_who_waits_for_them() -> None:
    broker, woken = DoorBroker(NOWHERE, "rollout", print, own_loop=False), []
    broker.hints.when("held", lambda: woken.append("held"))
    broker._heard(News(hint="held"))
    broker._heard(News(hint="nodes"))
    assert woken == ["held"]


@pytest.mark.parametrize(
    ("url", "own", "peers", "words"),
    [
        ("https://flex.test", "127.0.0.1", {"a-2": "10.0.0.2:7"}, r"FLEXMARL_CHILD_HOST is 127.0.0.1, but a has .*a-2"),
        ("https://flex.test", "10.0.0.1", {"a-2": "127.0.0.1:7"}, r"a-2, .* is reached on its own host alone"),
        ("https://flex.test", "10.0.0.1", {"a-2": "10.0.0.2:7", "a-3": ""}, ""),
        ("https://flex.test", "127.0.0.1", {}, ""),
        ("http://127.0.0.1:8000", "127.0.0.1", {"a-2": "127.0.0.1:7"}, ""),
    ],
)
def test_nodes_of_one_pool_must_reach_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, own: str, peers: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(entry, "admitted", lambda door: Admitted("a-1", "a", schema.VERSION, peers))
    config = settings.load(told(tmp_path, FLEXMARL_CONTROL_URL=url, FLEXMARL_CHILD_HOST=own))
    assert config.node_bind == f"{own}:0"
    if words:
        with pytest.raises(SettingsError, match=words):
            settled(config)
    else:
        assert settled(config).node == "a-1"
