"""The token of a host that joined, in a file of its home that only its user reads.

`node-token.json` holds the address of the web service and the token; `node-join.json` the same while the request of
that token waits, so that a host that starts again goes on with its request.
"""

import os
from pathlib import Path

from flexmarl.host.files import UnreadableFileError, read_json, sync_folder, write_json
from workers.door.address import DoorAddress
from workers.errors import SettingsError

TOKEN_FILE = "node-token.json"
WAITING_FILE = "node-join.json"
_OPEN_MODES = 0o077


def read_token(home: Path, name: str = TOKEN_FILE) -> DoorAddress | None:
    """Return the address and token in the file; None when there is none. Raises SettingsError for one that is wrong,
    or that others may read."""
    path = home / name
    try:
        found = path.stat()
        if found.st_mode & _OPEN_MODES or found.st_uid != os.geteuid():
            raise SettingsError(f"{path} must belong to this user and have mode 600; correct it, or delete it and join")
        said = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, UnreadableFileError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; delete it and join again") from error
    url, token = (said or {}).get("url"), (said or {}).get("token")
    if not isinstance(url, str) or not isinstance(token, str) or not url or not token:
        raise SettingsError(f"{path} must hold url and token; delete it and join again")
    return DoorAddress(url, token, str(path))


def keep_waiting(home: Path, address: DoorAddress) -> None:
    """Write down with which token this host asks."""
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / WAITING_FILE, {"url": address.url, "token": address.token})


def keep_token(home: Path) -> Path:
    """Make the token that waited that of this host; return where it is."""
    os.replace(home / WAITING_FILE, home / TOKEN_FILE)
    sync_folder(home)
    return home / TOKEN_FILE


def drop_waiting(home: Path) -> None:
    """Forget a request."""
    (home / WAITING_FILE).unlink(missing_ok=True)
