"""opencode in one session (npm install -g opencode-ai, at the version of requirements/programs/opencode.json).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of the model is a seat.
"""

import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

CONFIG = """
{
  "model": "flexmarl/solver",
  "provider": {
    "flexmarl": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "BASE_URL", "apiKey": "{env:FLEXMARL_KEY}"},
      "models": {"solver": {}}
    }
  }
}
"""


def play(session: dict[str, Any]) -> str:
    with TemporaryDirectory() as home, TemporaryDirectory() as workspace:
        environment = {
            **os.environ,
            "HOME": home,
            "FLEXMARL_KEY": session["key"],
            "OPENCODE_CONFIG_CONTENT": CONFIG.replace("BASE_URL", session["base_url"]),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        command = ["opencode", "run", "--title", "Sum", "What is 2+3? Ask the shell."]
        done = subprocess.run(
            command, cwd=workspace, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
        )
    return done.stdout.decode().strip()


if __name__ == "__main__":
    print(play(json.load(sys.stdin)))
