"""The home folder: where everything that one installation keeps on this machine lives.

Invariants: what holds secrets or data is closed to others (files 600, folders 700); a home made by root may be passed
through (711), since `nobody` runs the services there. Nothing outside the home is ever changed in mode or owner.
"""

import json
import os
import secrets
import tempfile
from pathlib import Path

from flexmarl.launcher.errors import LaunchError

SECRET_NAMES = ("postgres_password", "valkey_password", "secret_key", "cluster_key")


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
                f"cannot use {self.root} ({error.strerror}); it belongs to another account, so set FLEXMARL_HOME to a"
                " folder of your own"
            ) from None

    def secrets(self) -> dict[str, str]:
        """Return the installation's generated secrets, making the missing ones."""
        path = self.root / "secrets.json"
        known: dict[str, str] = read_json(path)
        missing = [name for name in SECRET_NAMES if name not in known]
        if missing:
            known |= {name: secrets.token_urlsafe(32) for name in missing}
            write_json(path, known)
        return known

    def open_log(self, name: str) -> int:
        """Return a descriptor that appends to the log of one process; the caller closes it."""
        return os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def read_json(path: Path) -> dict[str, str]:
    """Return the object in a file, empty when it is absent or was cut short."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: object) -> None:
    """Replace a private file in one step, so that a reader never sees half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file, indent=1)
    Path(temporary).replace(path)


def default_home(environment: dict[str, str] | os._Environ[str], checkout: Path) -> Path:
    """Return FLEXMARL_HOME, or `.flexmarl` beside manage.py."""
    return Path(environment.get("FLEXMARL_HOME") or checkout / ".flexmarl")
