"""The home folder: where everything that one installation keeps on this machine lives.

Invariants: what holds secrets or data is closed to others (files 600, folders 700); a home made by root may be passed
through (711), since `nobody` runs the services there. Nothing outside the home is ever changed in mode or owner.
Secrets are made once: a file of them that is there and cannot be read, or is missing beside data, is refused and left
as it is, since new ones would lock the installation out of its own database.
"""

import os
import secrets
from pathlib import Path

from flexmarl.host import output
from flexmarl.host.files import UnreadableFileError, read_json, write_json
from flexmarl.launcher.errors import LaunchError

SECRET_NAMES = ("postgres_password", "valkey_password", "secret_key", "cluster_key")
SECRETS = "secrets.json"
DATABASE_SECRET = "postgres_password"
"""The one that data on disk was made with: it cannot be made anew."""


class Home:
    """Paths below FLEXMARL_HOME, created on demand."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.logs = self.root / "logs"
        self.run = self.root / "run"
        self.runtime = self.root / "runtime"

    def prepare(self) -> None:
        """Create the folders; refuse one that belongs to another account. An existing folder keeps its mode."""
        try:
            if not self.root.exists():
                self.root.mkdir(parents=True)
                self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)
            for folder in (self.logs, self.run):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700)
        except PermissionError as error:
            raise LaunchError(
                f"cannot use {self.root} ({error.strerror}); it belongs to another account; set FLEXMARL_HOME to a"
                " folder of your own"
            ) from None

    def secrets(self) -> dict[str, str]:
        """Return the installation's generated secrets, making those that are missing. Raises LaunchError."""
        known = self._known_secrets()
        missing = [name for name in SECRET_NAMES if name not in known]
        if missing:
            if DATABASE_SECRET in missing and (self.root / "postgres" / "data").exists():
                raise LaunchError(self._lost(f"{self.root / SECRETS} does not hold {DATABASE_SECRET}"))
            known |= {name: secrets.token_urlsafe(32) for name in missing}
            write_json(self.root / SECRETS, known)
        return known

    def _known_secrets(self) -> dict[str, str]:
        try:
            known = read_json(self.root / SECRETS)
        except UnreadableFileError as error:
            raise LaunchError(self._lost(str(error))) from None
        if known is None:
            return {}
        wrong = sorted(
            name for name in SECRET_NAMES if name in known and not (known[name] and type(known[name]) is str)
        )
        if wrong or DATABASE_SECRET not in known:
            raise LaunchError(self._lost(f"{self.root / SECRETS} does not hold {(wrong or [DATABASE_SECRET])[0]}"))
        return known

    def _lost(self, what: str) -> str:
        """Say what to do when the secrets that belong to the data are not there."""
        text = f"{what}; nothing was changed. Restore it from a backup of {self.root}"
        if (self.root / "postgres" / "data").exists():
            return f"{text}, or move {self.root / 'postgres'} and {SECRETS} away to start with an empty database"
        return f"{text}, or remove it: no database here needs it"

    def open_log(self, name: str) -> int:
        """Return a descriptor that appends to the log of one process; the caller closes it. Never raises."""
        return output.open_log(self.logs / f"{name}.log")


def default_home(environment: dict[str, str] | os._Environ[str], checkout: Path) -> Path:
    """Return FLEXMARL_HOME, or `.flexmarl` beside manage.py."""
    return Path(environment.get("FLEXMARL_HOME") or checkout / ".flexmarl")
