"""Asks an installation to take this host: `python -m workers.join https://flexmarl.example.org`.

It shows a code, waits until an administrator has approved on *Pools and nodes*, and keeps the host's token in
FLEXMARL_HOME, where its processes find it. A host that has joined already is told so.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from flexmarl.host.exits import leave, refuse
from flexmarl.host.output import protect
from flexmarl.store.errors import SchemaMismatch
from workers import reporting, settings
from workers.door import joining, token_file
from workers.door.client import DoorAway, admitted
from workers.errors import JoinRefused, SettingsError
from workers.nodes.inventory import agent_version, discover
from workers.settings import Settings

PROCESSES = (
    "python -m workers.node",
    "python -m workers.run --role device",
    "python -m workers.run --role rollout",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Join, or say why not."""
    given = _read(arguments)
    reporting.configure("join")
    try:
        config = settings.joining(given.url.rstrip("/"), joining.new_token())
        if not _has_joined(config):
            _join(config, given.name, given.pool)
    except SettingsError as error:
        refuse(f"join: {error}")
    except (JoinRefused, SchemaMismatch) as error:
        sys.exit(f"join: {error}")
    except KeyboardInterrupt:
        sys.exit("join: the request goes on waiting; run this again to go on with it")


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.join", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="address of the web service, such as https://flexmarl.example.org")
    parser.add_argument("--name", default="", help="name of the node; default: made of the host's name")
    parser.add_argument("--pool", default="", help="its pool, which no other node has; default: its name")
    return parser.parse_args(arguments)


def _has_joined(config: Settings) -> bool:
    """Tell whether this host has a token that holds; one that is refused is asked for anew."""
    kept = token_file.read_token(config.home)
    if kept is None:
        return False
    try:
        who = admitted(kept)
    except SettingsError:
        _say(f"The token in {kept.told_by} holds no more; this host asks again.")
        return False
    except DoorAway as away:
        raise JoinRefused(f"{away}; this host has a token in {kept.told_by}, delete it to join elsewhere") from away
    _say(f"This host has joined {kept.url} as {who.node} in pool {who.pool}: its token is in {kept.told_by}.")
    return True


def _join(config: Settings, node: str, pool: str) -> None:
    assert config.door is not None
    url = config.door.url
    names = joining.wished(node or config.node, pool)
    devices = discover(names.node, config.device_classes, config.cpu_shares, config.share)
    request = joining.request_of(names, agent_version(), devices)
    answer = joining.join(config.home, url, request, _shown(url, request.node))
    kept = config.home / token_file.TOKEN_FILE
    _say(f"Approved as {answer.node} in pool {answer.pool}. The token is in {kept}; with the same FLEXMARL_HOME run")
    for command in PROCESSES:
        _say(f"  {command}")


def _shown(url: str, node: str) -> Callable[[str], None]:
    def shown(code: str) -> None:
        _say(f"{node} waits to join {url}. An administrator approves it there on Pools and nodes.")
        _say(f"Code to compare: {code}")

    return shown


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    protect()
    main()
    leave()
