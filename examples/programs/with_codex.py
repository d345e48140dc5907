"""Codex in one session (npm install -g @openai/codex, at the version of requirements/programs/codex.json).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of the model is a seat.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CONFIG = """
model = "solver"
model_provider = "flexmarl"
web_search = "disabled"
agents.enabled = false

[model_providers.flexmarl]
name = "FlexMARL"
base_url = "BASE_URL"
env_key = "FLEXMARL_KEY"
"""


def play(session: dict[str, Any]) -> str:
    with TemporaryDirectory() as home, TemporaryDirectory() as workspace:
        Path(home, "config.toml").write_text(CONFIG.replace("BASE_URL", session["base_url"]))
        environment = {**os.environ, "CODEX_HOME": home, "FLEXMARL_KEY": session["key"]}
        command = ["codex", "exec", "--skip-git-repo-check", "--cd", workspace, "What is 2+3? Ask the shell."]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


if __name__ == "__main__":
    print(play(json.load(sys.stdin)))
