"""What a hub refuses or fails at, by name: the same for models and datasets."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from httpx2 import HTTPError
from huggingface_hub import errors

from flexmarl.contracts.hub_models import HubRepository
from workers.errors import ImportRefused

ASK_S = 30.0
"""Longest wait for an answer about a repository or a file."""


@contextmanager
def named(source: HubRepository, kind: str) -> Iterator[None]:
    """Turn what the library raises into ImportRefused. `kind` says what the repository is to be."""
    of = f"{source.repository} at {source.revision}"
    try:
        yield
    except errors.GatedRepoError as error:
        text = f"{source.repository} is given only to those whom its owner admitted; name the secret of such an account"
        raise ImportRefused("hub_gated", text) from error
    except errors.RevisionNotFoundError as error:
        raise ImportRefused("hub_no_revision", f"{source.repository} has no revision {source.revision}") from error
    except errors.RepositoryNotFoundError as error:
        text = f"the hub shows no {kind} {source.repository}: it does not exist, or is shown to those who name a secret"
        raise ImportRefused("hub_not_found", text) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            text = f"the hub refuses {of} with status {status}; name the secret of an account that may read it"
            raise ImportRefused("hub_gated", text) from error
        raise ImportRefused("hub_unreachable", f"the hub answered {of} with status {status}") from error
    except errors.HFValidationError as error:
        raise ImportRefused("hub_not_found", f"the hub has no such name: {source.repository}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ImportRefused("state_full", "the disk of the node that fetches is full; free some of it") from error
        raise ImportRefused("hub_unreachable", f"the hub gave no {of}: {type(error).__name__}") from error
    except HTTPError as error:  # connections that are refused, cut or late, and what the library makes of it
        raise ImportRefused("hub_unreachable", f"the hub gave no {of}: {type(error).__name__}") from error
