"""Settings: typed readers name the variable; production guesses nothing."""

import os
import subprocess
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from flexmarl.controlplane.settings import env

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "FLEXMARL_SECRET_KEY": "s" * 60,
    "FLEXMARL_CLUSTER_KEY": "c",
    "DATABASE_URL": "postgresql://u@db/flexmarl",
    "REDIS_URL": "redis://r",
    "FLEXMARL_ALLOWED_HOSTS": "flexmarl.example.org",
}


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False), ("", False)])
def test_flags(monkeypatch, text, value) -> None:
    monkeypatch.setenv("X", text)
    assert env.flag("X", default=not value) is value


def test_wrong_values_name_their_variable(monkeypatch) -> None:
    monkeypatch.setenv("X", "maybe")
    for read in (lambda: env.flag("X"), lambda: env.integer("X", 1), lambda: env.database("X", "")):
        with pytest.raises(ImproperlyConfigured, match="X"):
            read()
    monkeypatch.setenv("X", "0")
    with pytest.raises(ImproperlyConfigured, match="below 1"):
        env.integer("X", 1, minimum=1)


def test_database_urls(monkeypatch) -> None:
    monkeypatch.setenv("X", "postgresql://us%40er:p%2Fw@db.example:5433/na%20me?sslmode=require")
    found = env.database("X", "")
    assert (found["USER"], found["PASSWORD"], found["HOST"], found["PORT"]) == ("us@er", "p/w", "db.example", "5433")
    assert (found["NAME"], found["OPTIONS"]) == ("na me", {"sslmode": "require"})
    monkeypatch.setenv("X", "postgresql:///flexmarl?host=/var/run/postgresql")
    found = env.database("X", "")
    assert (found["HOST"], found["NAME"], found["OPTIONS"]) == ("/var/run/postgresql", "flexmarl", {})


def test_several_database_servers_are_one_address_that_says_which_is_wanted(monkeypatch) -> None:
    monkeypatch.setenv("X", "postgresql://u:p@one:5433,[fd00::2]:5434/name?target_session_attrs=read-write")
    found = env.database("X", "")
    assert (found["HOST"], found["PORT"], found["NAME"]) == ("one,fd00::2", "5433,5434", "name")
    assert found["OPTIONS"] == {"target_session_attrs": "read-write"}
    for address in ("postgresql://u:p@one,two/name", "postgresql://u:p@one,two/name?target_session_attrs=any"):
        monkeypatch.setenv("X", address)
        with pytest.raises(ImproperlyConfigured, match=r"X names several servers.* \?target_session_attrs=read-write"):
            env.database("X", "")


@pytest.mark.parametrize(
    "address", ["postgresql://h:0/x", "postgresql://h:70000/x", "postgresql://h/x?unknown=1", "postgresql://[h/x"]
)
def test_an_address_that_is_none_is_not_repeated(monkeypatch, address: str) -> None:
    monkeypatch.setenv("X", address)
    with pytest.raises(ImproperlyConfigured, match="X is not a legal address; it must look like postgresql://") as told:
        env.database("X", "")
    assert address not in str(told.value)


def test_words_are_trimmed(monkeypatch) -> None:
    monkeypatch.setenv("X", " a, b ,,")
    assert env.words("X") == ["a", "b"]
    monkeypatch.delenv("X")
    assert env.words("X", ("c",)) == ["c"]


def check_production(python: str, **values: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in PRODUCTION and "FLEXMARL" not in name}
    settings = {"DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.production"}
    command = [python, str(ROOT / "manage.py"), "check", "--deploy", "--fail-level", "ERROR"]
    return subprocess.run(command, env={**kept, **settings, **values}, capture_output=True, text=True, check=False)


def test_production_refuses_to_guess_and_accepts_a_complete_environment(python) -> None:
    bare = check_production(python)
    assert bare.returncode != 0
    assert "FLEXMARL_SECRET_KEY must be set in production" in bare.stderr
    complete = check_production(python, **PRODUCTION)
    assert complete.returncode == 0, complete.stderr
    for warning in ("security.W012", "security.W016", "security.W018", "security.W020"):
        assert warning not in complete.stderr, "cookies, debug, hosts"


def test_networks_are_addresses_and_ranges(monkeypatch) -> None:
    monkeypatch.setenv("X", "10.0.0.5, 2001:db8::/32")
    assert [str(network) for network in env.networks("X")] == ["10.0.0.5/32", "2001:db8::/32"]
    monkeypatch.setenv("X", "localhost")
    with pytest.raises(ImproperlyConfigured, match="X"):
        env.networks("X")
    monkeypatch.delenv("X")
    assert env.networks("X") == ()
