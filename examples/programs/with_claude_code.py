"""Claude Code in one session (npm install -g, at the version of requirements/programs/claude-code.json).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of the model is a seat.
"""

import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any


def play(session: dict[str, Any]) -> str:
    with TemporaryDirectory() as home, TemporaryDirectory() as workspace:
        environment = {
            **os.environ,
            "ANTHROPIC_BASE_URL": session["base_url"].removesuffix("/v1"),
            "ANTHROPIC_API_KEY": session["key"],
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "solver",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CONFIG_DIR": home,
        }
        command = ["claude", "--print", "--model", "solver", "--tools", "Bash", "--allowedTools", "Bash"]
        asked = b"What is 2+3? Ask the shell."
        done = subprocess.run(command, cwd=workspace, env=environment, input=asked, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


if __name__ == "__main__":
    print(play(json.load(sys.stdin)))
