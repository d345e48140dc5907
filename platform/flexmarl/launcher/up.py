"""One command for one machine: services, migrations, first admin, processes, one address.

The start is a fixed list of steps (`Up.run`); whatever step fails or is interrupted, `_stop` undoes them in reverse:
web, driver, workers, node, Valkey, PostgreSQL, within 10 s.
"""

import json
import logging
import os
import secrets as secret_words
import signal
import subprocess
import time
from collections.abc import Callable

import structlog

from flexmarl.launcher.children import State, answers
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.plan import PUBLISHED, Options, environment_of, process_specs, url_of
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.processes import end, free_port, port_is_free, refuse_windows, spawn
from flexmarl.launcher.state import (
    LAUNCH_VARIABLE,
    HomeLock,
    clear_state,
    end_left_overs,
    publish_environment,
    write_state,
)
from flexmarl.launcher.supervisor import ROUND_S, Signals, StopAsked, Supervisor, wait_for
from flexmarl.launcher.valkey import EmbeddedValkey

DEFAULT_PORT = 8000
READY_S = 180.0
"""Longest time until the page answers: on a machine whose cores others hold, its imports alone may take a minute."""
STEP_S = 120.0
"""Longest time of a one-shot step, such as migrating a large database."""

STOP_S = 9.0
"""What is left of it after the processes is PostgreSQL's, for a clean shutdown."""

Say = Callable[[str], None]


def supervisor_log(home: Home) -> structlog.typing.FilteringBoundLogger:
    """Return the supervisor's own log: JSON lines in `logs/supervisor.log`."""
    file = (home.logs / "supervisor.log").open("a", buffering=1)
    log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(file),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
    )
    return log


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
        self.announced = False

    def run(self) -> int:
        """Start everything, keep it running until a stop signal, stop everything. Return the exit code."""
        refuse_windows()
        self.home.prepare()
        with HomeLock(self.home), Signals() as signals:
            self.log = supervisor_log(self.home)
            signals.interrupting = True
            try:
                self._start()
                signals.interrupting = False
                while not signals.stop:
                    signals.sleep(self.supervisor.rest_s() if self.supervisor else ROUND_S)
                    self._round()
            except StopAsked:
                pass
            finally:
                signals.interrupting = False
                self._stop()
        return 0

    def _start(self) -> None:
        began = time.monotonic()
        ended = end_left_overs(self.home)
        if ended:
            self.say(f"Ended what an earlier start left running: {', '.join(ended)}")
        self.port = self._choose_port()
        self._publish(ready=False)
        self._start_services()
        first_admin = self._step("prepare")
        self._start_processes()
        self._announce(first_admin, time.monotonic() - began)
        self._publish(ready=True)
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
        environment = environment_of(self.options, os.environ, self.home.secrets(), database_url, redis_url)
        self.environment = {**environment, LAUNCH_VARIABLE: self.launch}
        publish_environment(self.home, {name: self.environment[name] for name in PUBLISHED})

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
        lines = (self.home.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

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

    def _round(self) -> None:
        """Keep the services up, then the processes."""
        if self._revive_services():
            self._set_environment()
            if self.supervisor and self.supervisor.environment != self.environment:
                self.supervisor.replace_all(self.environment)
        if self.supervisor and self.supervisor.round():
            self._publish(ready=self.announced)

    def _revive_services(self) -> bool:
        """Start a service that ended, on its old port when that is free."""
        revived = False
        for service in (self.postgres, self.valkey):
            if service is not None and not service.alive():
                self.log.warning("ended", process=service.name)
                try:
                    service.start()
                except LaunchError as error:
                    self.log.error("not started", process=service.name, reason=str(error))
                    continue
                self.log.info("started", process=service.name, port=service.port)
                revived = True
        return revived

    def _publish(self, ready: bool) -> None:
        records = self.supervisor.records() if self.supervisor else []
        url = url_of(self.options.host, self.port)
        write_state(self.home, launch=self.launch, url=url, ready=ready, records=records)

    def _announce(self, first_admin: dict[str, str], seconds: float) -> None:
        url = url_of(self.options.host, self.port)
        if first_admin.get("password"):
            self.say(f"First admin: {first_admin['username']}   password: {first_admin['password']}   (shown only now)")
        else:
            self.say("Sign in with your account; a lost password is set by: manage.py changepassword NAME")
        for child in self.supervisor.children if self.supervisor else []:
            if child.state is State.WAITING:
                self.say(f"{child.spec.name} ended at once and is started again; see {self._log_of(child.spec.name)}")
        self.say(f"Data and logs: {self.home.root}")
        self.announced = True
        self.say(f"FlexMARL runs at {url}   (up in {seconds:.1f} s; Ctrl-C stops it)")

    def _demo(self) -> None:
        try:
            run = self._step("start_demo")
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
        clear_state(self.home)
        seconds = round(time.monotonic() - began, 2)
        self.log.info("stopped", seconds=seconds)
        self.say(f"Stopped in {seconds} s")
