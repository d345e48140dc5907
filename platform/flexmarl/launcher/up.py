"""One command for one machine: services, migrations, first admin, processes, one address.

The start is a fixed list of steps (`Up.run`); whatever step fails or is interrupted, `_stop` undoes them in reverse:
web, driver, workers, node, Valkey, PostgreSQL, within 10 s.
"""

import contextlib
import json
import os
import secrets as secret_words
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from flexmarl.launcher import environment as settings
from flexmarl.launcher.children import ChildState, answers
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import SECRET_NAMES, Home
from flexmarl.launcher.plan import PUBLISHED, Options, environment_of, process_specs, url_of
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.processes import end, free_port, port_is_free, refuse_windows, spawn
from flexmarl.launcher.publishing import Publisher, supervisor_log
from flexmarl.launcher.state import (
    LAUNCH_VARIABLE,
    HomeLock,
    clear_state,
    end_left_overs,
)
from flexmarl.launcher.supervisor import ROUND_S, Signals, StopRequested, Supervisor, wait_for
from flexmarl.launcher.upkeep import Upkeep
from flexmarl.launcher.valkey import EmbeddedValkey

DEFAULT_PORT = 8000
READY_S = 180.0
"""Longest time until the page answers: on a machine whose cores others hold, its imports alone may take a minute."""
STEP_S = 120.0
"""Longest time of a one-shot step, such as migrating a large database."""

STOP_S = 9.0
"""What is left of it after the processes is PostgreSQL's, for a clean shutdown."""

Say = Callable[[str], None]


class Up:
    """One launch, from the first folder to the last process."""

    def __init__(self, options: Options, say: Say) -> None:
        self.options = options
        self.say = say
        self.home = Home(options.home)
        self.launch = secret_words.token_hex(8)
        self.postgres = None if os.environ.get("DATABASE_URL") else EmbeddedPostgres(self.home)
        self.valkey = None if os.environ.get("REDIS_URL") else EmbeddedValkey(self.home)
        self.port = 0
        self.supervisor: Supervisor | None = None
        self.environment: dict[str, str] = {}

    def run(self) -> int:
        """Start everything, keep it running until a stop signal, stop everything. Return the exit code."""
        refuse_windows()
        self.home.prepare()
        with HomeLock(self.home), Signals() as signals:
            self._check_settings()
            self.publisher = Publisher(self.home, self.launch, supervisor_log(self.home))
            self.upkeep = Upkeep(self.home, self.postgres, self.valkey, self.log)
            signals.interrupting = True
            try:
                self._start()
                while not signals.stop:
                    signals.interrupting = True  # a service that cannot start keeps nobody from stopping
                    self._unfailing_round()
                    signals.interrupting = False
                    signals.sleep(self.supervisor.rest_s() if self.supervisor else ROUND_S)
            except StopRequested:
                pass
            finally:
                signals.interrupting = False
                self._stop()
        return 0

    @property
    def log(self) -> structlog.typing.FilteringBoundLogger:
        """Return the supervisor's log."""
        return self.publisher.log

    def _check_settings(self) -> None:
        """Refuse settings that a process would refuse later. Raises LaunchError; nothing was started then."""
        if settings.chosen_by_person(os.environ):
            secrets = dict.fromkeys(SECRET_NAMES, "checked later")
            database_url = os.environ.get("DATABASE_URL") or "postgresql://127.0.0.1/flexmarl"
            redis_url = os.environ.get("REDIS_URL") or "redis://127.0.0.1/0"
            options = replace(self.options, port=max(self.options.port, 1))
            environment = environment_of(options, os.environ, secrets, database_url, redis_url)
            settings.check(environment, self.options.root)

    def _start(self) -> None:
        began = time.monotonic()
        ended = end_left_overs(self.home)
        if ended:
            self.say(f"Ended processes left by an earlier start: {', '.join(ended)}")
        self.port = self._choose_port()
        self._publish()
        self._start_services()
        if self.options.services_only:
            self._announce_services()
            return
        self._tell_admin(self._step("prepare"))
        self._start_processes()
        self._announce(time.monotonic() - began)
        self._publish()
        if self.options.demo:
            self._demo()

    def _choose_port(self) -> int:
        """Return the port of the web process; a port asked for by number is never exchanged silently."""
        host, asked = self.options.host, self.options.port
        if asked < 0:
            return free_port(host, DEFAULT_PORT)
        if asked and not port_is_free(host, asked):
            raise LaunchError(f"port {asked} is used by another program; try --port {free_port(host)}")
        return asked or free_port(host)

    def _start_services(self) -> None:
        for service in (self.postgres, self.valkey):
            if service is not None:
                service.start()
                self.log.info("started", process=service.name, port=service.port)
        self._set_environment()

    def _set_environment(self) -> None:
        database_url = self.postgres.url if self.postgres else os.environ["DATABASE_URL"]
        redis_url = self.valkey.url if self.valkey else os.environ["REDIS_URL"]
        options = replace(self.options, port=self.port)
        environment = environment_of(options, os.environ, self.home.secrets(), database_url, redis_url)
        self.environment = {**environment, LAUNCH_VARIABLE: self.launch}
        if self.supervisor and self.supervisor.environment != self.environment:
            self.supervisor.replace_all(self.environment)
        self._publish()

    def _step(self, *command: str) -> dict[str, str]:
        """Run a management command to its end and return the JSON object in its last line of output."""
        name = command[0]
        manage = process_specs(self.options, self.port)[0].args[:2]
        log = self.home.open_log(name)
        try:
            process = spawn(
                [*manage, *command], cwd=self.home.root, env=self.environment, output=subprocess.PIPE, errors=log
            )
        finally:
            os.close(log)
        try:
            output, _ = process.communicate(timeout=STEP_S)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"`manage.py {name}` took over {STEP_S:.0f} s; see {self._log_of(name)}") from None
        finally:
            end(process, [(signal.SIGTERM, 2.0)])
        lines = output.decode().strip().splitlines()
        if process.returncode != 0 or not lines:
            raise LaunchError(f"`manage.py {name}` failed: {self._last_line_of(name)}; see {self._log_of(name)}")
        value = json.loads(lines[-1])
        return value if isinstance(value, dict) else {}

    def _last_line_of(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = (self.home.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "no output"
        return "its log could not be written"

    def _log_of(self, name: str) -> str:
        return str(self.home.logs / f"{name}.log")

    def _start_processes(self) -> None:
        self.supervisor = Supervisor(self.home, self.launch, process_specs(self.options, self.port), self.log)
        self.supervisor.environment = self.environment
        health = f"{url_of(self.options.host, self.port)}/healthz"
        if not wait_for(lambda: answers(health), READY_S, self._round):
            web = self.supervisor.children[0]
            said = web.log_tail()
            raise LaunchError(f"the web process did not answer in {READY_S:.0f} s; see {self._log_of('web')}: {said}")

    def _unfailing_round(self) -> None:
        try:
            self._round()
        except OSError as error:  # no space for a file, no memory for a process: the next round tries again
            self.log.error("round failed", reason=str(error))

    def _round(self) -> None:
        """Keep the services up, then the processes."""
        if self.upkeep.round(time.monotonic()):
            self._set_environment()
        if self.supervisor:
            self.supervisor.round()
        self._publish()

    def _publish(self) -> None:
        records = self.supervisor.records() if self.supervisor else []
        refused = self.supervisor.refused() if self.supervisor else {}
        self.publisher.publish(url_of(self.options.host, self.port), records, refused)
        if self.environment:
            self.publisher.publish_environment({name: self.environment[name] for name in PUBLISHED})

    def _tell_admin(self, first: dict[str, str]) -> None:
        """Say the first admin's password as soon as it is made: whatever ends this start, it has been seen."""
        if first.get("password"):
            self.say(f"First admin: {first['username']}   password: {first['password']}   (shown only once)")
            return
        change = f"FLEXMARL_HOME={shlex.quote(str(self.home.root))} {sys.executable} manage.py changepassword"
        if name := first.get("username"):
            self.say(f"No sign-in as {name} yet; if you do not have its password, set one with: {change} {name}")
        else:
            self.say(f"Sign in with your account; set a lost password with: {change} NAME")

    def _announce(self, seconds: float) -> None:
        url = url_of(self.options.host, self.port)
        for child in self.supervisor.children if self.supervisor else []:
            if child.state is ChildState.WAITING:
                self.say(
                    f"{child.spec.name} exited immediately and is being restarted; see {self._log_of(child.spec.name)}"
                )
            elif child.state is ChildState.REFUSED:
                self.say(f"{child.spec.name} is not running: {child.refusal}")
        self.say(f"Data and logs: {self.home.root}")
        self.publisher.ready = True
        self.say(f"FlexMARL runs at {url}   (up in {seconds:.1f} s; Ctrl-C stops it)")

    def _announce_services(self) -> None:
        running = [service.name for service in (self.postgres, self.valkey) if service is not None]
        if not running:
            raise LaunchError("DATABASE_URL and REDIS_URL are set, so there is no embedded server to start")
        self.publisher.ready = True
        self._publish()
        self.say(f"Only the servers run: {', '.join(running)}; Ctrl-C stops them")

    def _demo(self) -> None:
        try:
            run = self._step("start_demo", "--template", self.options.demo)
        except LaunchError as error:
            self.say(f"No demo run: {error}")
            return
        self.say(f"Demo run: {url_of(self.options.host, self.port)}{run['path']}")

    def _stop(self) -> None:
        began = time.monotonic()
        self.say("Stopping")
        if self.supervisor:
            self.supervisor.stop()
        if self.valkey:
            self.valkey.stop()
        if self.postgres:
            self.postgres.stop(max(1.0, STOP_S - (time.monotonic() - began)))
        with contextlib.suppress(OSError):
            clear_state(self.home)
        seconds = round(time.monotonic() - began, 2)
        self.log.info("stopped", seconds=seconds)
        self.say(f"Stopped in {seconds} s")
