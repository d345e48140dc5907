"""A command that has an agent mend a file: `fix FILE QUESTION`. FlexMARL starts it for each session, in a workspace.

It knows nothing of FlexMARL: like any client it finds base URL and key in its variables, and writes what it was told.
"""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def asked(question: str) -> str:
    """Ask the agent."""
    body = {"model": os.environ.get("MODEL", "agent"), "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"] or ""


def main() -> None:
    """Mend a file: put what the agent writes between ``` lines in its place."""
    file, question = Path(sys.argv[1]), sys.argv[2]
    said = asked(f"{question}\n\n{file.name}:\n```python\n{file.read_text()}```\nWrite the whole file.")
    if blocks := _FENCE.findall(said):
        file.write_text(blocks[-1])
    print(f"{file.name}: {'mended' if blocks else 'left as it was'}")
