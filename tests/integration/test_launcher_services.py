"""Embedded PostgreSQL and Valkey: what a person may do to them, and that they come back."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from flexmarl.launcher import binaries
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres, left_over
from flexmarl.launcher.processes import Account, refuse_nameless, refuse_windows
from flexmarl.launcher.valkey import EmbeddedValkey

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.services


@pytest.fixture
def home(short_tmp: Path) -> Home:
    return Home(short_tmp / "a home with spaces")


@pytest.fixture(scope="module")
def used() -> Iterator[Home]:
    """One whose database is made, and does not run. Tests leave it so."""
    folder = Path(tempfile.mkdtemp(prefix="flexmarl-test-"))
    folder.chmod(0o711)
    made = Home(folder / "a home with spaces")
    postgres = EmbeddedPostgres(made)
    try:
        postgres.start()
    finally:
        postgres.stop()
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def count_after_insert(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def start_then(home: Home, last_act: str) -> None:
    """Start both services in another process, write one row, then do `last_act` there."""
    script = f"""
        import os, signal, sys
        from pathlib import Path
        import psycopg
        from flexmarl.launcher.home import Home
        from flexmarl.launcher.postgres import EmbeddedPostgres
        from flexmarl.launcher.valkey import EmbeddedValkey
        home = Home(Path({str(home.root)!r}))
        postgres, valkey = EmbeddedPostgres(home), EmbeddedValkey(home)
        postgres.start(), valkey.start()
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
        {last_act}
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=False, timeout=60)


def home_password(secrets: str) -> str:
    return str(json.loads(secrets)["postgres_password"])


def test_data_survives_a_clean_second_start(home: Home) -> None:
    for expected in (1, 2):
        postgres = EmbeddedPostgres(home)
        try:
            assert count_after_insert(postgres.start()) == expected
        finally:
            postgres.stop()
        assert left_over(postgres.data) is None


def test_rows_survive_the_death_of_the_starter(home: Home) -> None:
    start_then(home, "os.kill(os.getpid(), signal.SIGKILL)")
    postgres, valkey = EmbeddedPostgres(home), EmbeddedValkey(home)
    try:
        assert count_after_insert(postgres.start()) == 2
        valkey.start()
    finally:
        valkey.stop()
        postgres.stop()


def test_rows_survive_sigkill_of_the_postmaster(home: Home) -> None:
    start_then(home, "os.kill(postgres.process.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)")
    postgres = EmbeddedPostgres(home)
    try:
        assert count_after_insert(postgres.start()) == 2
    finally:
        postgres.stop()


def test_a_left_over_postmaster_is_stopped_first(home: Home) -> None:
    first, second = EmbeddedPostgres(home), EmbeddedPostgres(home)
    try:
        count_after_insert(first.start())
        assert count_after_insert(second.start()) == 2
        assert first.process is not None
        assert first.process.wait(60) == 0
    finally:
        second.stop()
        first.stop()


def test_a_left_over_valkey_is_stopped_first(home: Home) -> None:
    first, second = EmbeddedValkey(home), EmbeddedValkey(home)
    try:
        first.start()
        second.start()
        assert not first.alive()
        assert second.alive()
    finally:
        second.stop()
        first.stop()


@pytest.mark.parametrize(
    "content", ["", "99999999\n/x\n1\n", f"{os.getpid()}\n/x\n1\n"], ids=["empty", "nobody", "somebody else"]
)
def test_a_stale_pid_file_is_no_obstacle(used: Home, content: str) -> None:
    postgres = EmbeddedPostgres(used)
    try:
        (postgres.data / "postmaster.pid").write_text(content)
        assert left_over(postgres.data) is None
        assert count_after_insert(postgres.start()) >= 1
    finally:
        postgres.stop()


def test_a_set_up_killed_half_way_is_repeated(home: Home) -> None:
    home.prepare()
    half = home.root / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("cut")
    postgres = EmbeddedPostgres(home)
    try:
        assert count_after_insert(postgres.start()) == 1
    finally:
        postgres.stop()
    assert not half.exists()


def test_a_taken_port_gives_way_to_a_free_one(used: Home, services: object) -> None:
    taken = services.postgres.port if services.postgres else 0
    postgres = EmbeddedPostgres(used, port=taken)
    try:
        postgres.start()
        assert not taken or postgres.port != taken
    finally:
        postgres.stop()


def test_services_ask_for_the_password(used: Home) -> None:
    postgres, valkey = EmbeddedPostgres(used), EmbeddedValkey(used)
    try:
        postgres.start(), valkey.start()
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(postgres.url.replace(used.secrets()["postgres_password"], "wrong"))
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=valkey.port).ping()
        listening = {c.laddr.ip for c in psutil.Process(valkey.process.pid).net_connections() if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
    finally:
        valkey.stop()
        postgres.stop()


def test_secrets_and_data_are_closed_to_others(used: Home) -> None:
    postgres = EmbeddedPostgres(used)
    try:
        postgres.start()
        assert stat.S_IMODE((used.root / "secrets.json").stat().st_mode) == 0o600
        for folder in (postgres.folder, postgres.data, used.logs, used.run):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        postgres.stop()


def test_lost_secrets_are_named(used: Home) -> None:
    postgres, path = EmbeddedPostgres(used), used.root / "secrets.json"
    kept = path.read_text()
    try:
        path.unlink()
        with pytest.raises(LaunchError, match="does not hold postgres_password; nothing was changed"):
            postgres.start()
        assert not path.exists(), "new ones would lock the database"
        path.write_text(kept.replace(home_password(kept), "another"))
        with pytest.raises(LaunchError, match="does not match the data"):
            postgres.start()
    finally:
        postgres.stop()
        path.write_text(kept)
        path.chmod(0o600)


def test_data_of_another_version_is_named(used: Home) -> None:
    postgres = EmbeddedPostgres(used)
    version = postgres.data / "PG_VERSION"
    kept = version.read_text()
    try:
        version.write_text("9\n")
        with pytest.raises(LaunchError, match="holds data of PostgreSQL 9"):
            postgres.start()
    finally:
        postgres.stop()
        version.write_text(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the services under another account")
def test_as_root_under_a_closed_folder_nothing_is_opened_up(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = short_tmp / "closed"
    closed.mkdir(mode=0o700)
    home = Home(closed / "home")
    truth = binaries.reachable

    def reachable(path: Path, account: Account | None) -> bool:
        return "site-packages" not in str(path) and truth(path, account)

    monkeypatch.setattr(binaries, "reachable", reachable)
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    postgres, valkey = EmbeddedPostgres(home), EmbeddedValkey(home)
    try:
        assert count_after_insert(postgres.start()) == 1
        valkey.start()
        for process in (postgres.process, valkey.process):
            assert psutil.Process(process.pid).username() == "nobody"
        assert str(short_tmp / "flexmarl-bin-") in psutil.Process(postgres.process.pid).cmdline()[0]
    finally:
        valkey.stop()
        postgres.stop()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_valkey_starts_over_what_a_power_loss_left_and_leaves_nothing_itself(home: Home) -> None:
    """An append-only file of an earlier release that ends in zeros, as a file system without its journal has it."""
    folder = home.root / "valkey" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n" + b"\0" * 4096)
    for path in folder.iterdir():
        path.chmod(0o644)
    (home.root / "run").mkdir()
    (home.root / "run" / "valkey.pid").write_bytes(b"\0" * 20)
    valkey = EmbeddedValkey(home)
    try:
        with redis.Redis.from_url(valkey.start()) as client:
            client.set("a", "1")
            assert client.config_get("appendonly") == {"appendonly": "no"}
    finally:
        valkey.stop()
    assert list((home.root / "valkey").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b'{"postgres_pass', b"[]", b"{}", b'{"postgres_password": ""}'])
def test_secrets_that_a_power_loss_cut_are_refused_and_left_as_they_are(home: Home, content: bytes) -> None:
    home.prepare()
    home.secrets()
    path = home.root / "secrets.json"
    path.write_bytes(content)
    with pytest.raises(LaunchError, match="nothing was changed"):
        home.secrets()
    assert path.read_bytes() == content


def test_a_nameless_account_is_refused_in_one_line() -> None:
    with pytest.raises(LaunchError, match="run as a named account, or set DATABASE_URL"):
        refuse_nameless(3_999_999_999)


def test_windows_is_refused_in_one_line() -> None:
    with pytest.raises(LaunchError, match="WSL2") as caught:
        refuse_windows("win32")
    assert "\n" not in str(caught.value)
