"""An agent program of two seats. What makes it train is marked: a session, its base URL and key, and a report.

Needs the client of OpenAI (`pip install openai`). FLEXMARL_URL: the platform; FLEXMARL_TOKEN: a token with `runs:act`;
FLEXMARL_RUN: key of a run with `environment: {type: program, seats: [solver, reviser]}`.
"""

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

from openai import OpenAI, OpenAIError

SESSIONS = f"{os.environ['FLEXMARL_URL']}/api/v1/runs/{os.environ['FLEXMARL_RUN']}/sessions"


def answer(client: OpenAI, left: int, right: int) -> str:
    """Have the solver answer and the reviser answer again, as the program did before it trained."""
    question = {"role": "user", "content": f"What is {left}+{right}? Answer with only the number."}
    first = client.chat.completions.create(model="solver", messages=[question]).choices[0].message.content
    told = {"role": "user", "content": f"{question['content']} A colleague said: {first}"}
    return client.chat.completions.create(model="reviser", messages=[told]).choices[0].message.content or ""


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(SESSIONS + path, json.dumps(body).encode(), method="POST")
    request.add_header("Authorization", f"Bearer {os.environ['FLEXMARL_TOKEN']}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def main() -> None:
    while True:
        try:
            session = post("", {})  # 1: take a session
        except urllib.error.HTTPError as refused:
            if json.load(refused)["code"] not in {"no_open_session", "rate_limited"}:
                break  # the run has ended
            time.sleep(float(refused.headers.get("Retry-After", 1)))
            continue
        client = OpenAI(base_url=session["base_url"], api_key=session["key"])  # 2 and 3: its base URL and key
        left, right = session["task"] % 10, session["task"] // 10 % 10  # 4: its number says which task it is
        try:
            said = answer(client, left, right)
            post(f"/{session['id']}/finish", {"reward": float(said.strip() == str(left + right))})  # 5: what it earned
        except (OpenAIError, urllib.error.HTTPError):
            continue  # its worker is gone, or the run does not need it any more: the episode is played again


if __name__ == "__main__":
    main()
