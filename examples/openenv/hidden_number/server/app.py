"""The application that serves the environment: `uvicorn hidden_number.server.app:app`."""

import argparse

import uvicorn
from openenv.core.env_server.http_server import create_app

from ..models import HiddenNumberAction, HiddenNumberObservation
from .hidden_number_environment import HiddenNumberEnvironment

app = create_app(
    HiddenNumberEnvironment,
    HiddenNumberAction,
    HiddenNumberObservation,
    env_name="hidden_number",
    max_concurrent_envs=1,
)


def main() -> None:
    """Serve the environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
