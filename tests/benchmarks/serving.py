"""What a serving key adds to a call: a call of one token of an ended run, with a key and with a token of a person.

Both go through the same process, engine and version, in turns. `added_ms` is the difference of the medians: the check
of the key, and two short transactions that let the call in and charge it.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
from harness import start

from tests.support.system import System

UNLIMITED = {"FLEXMARL_API_MODELS_PER_MINUTE": "100000"}
SPEC: dict[str, Any] = {
    "policies": {role: {"model": {"size": "S"}} for role in ("speaker", "listener")},
    "budget": {"train_steps": 2, "target": None},
}


def main() -> None:
    """Train a moment, ask in turns, report."""
    report = start("serving", __doc__ or "", _options)
    calls = 40 if report.quick else int(str(report.settings["calls"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-serving-") as folder:
        Path(folder).chmod(0o711)
        with System(Path(folder) / "home", environment=UNLIMITED) as system:
            api = system.api()
            run = api.create_run(name="asked", template="reference_game", spec=SPEC)
            api.finish(run["id"], 240)
            quotas = {"requests_per_minute": 100_000, "tokens_per_day": 10**9}
            key = api.post(f"/projects/{run['project']}/serving-keys", {"name": "program", **quotas})["secret"]
            seconds = _asked(api.base, f"{run['key']}/listener@0", {"token": api.token, "key": key}, calls)
    for name, took in seconds.items():
        report.figures[f"{name}_p50_ms"] = float(np.median(took)) * 1e3
        report.figures[f"{name}_p95_ms"] = float(np.quantile(took, 0.95)) * 1e3
    report.figures["added_ms"] = report.figures["key_p50_ms"] - report.figures["token_p50_ms"]
    report.finish()


def _asked(base: str, model: str, credentials: dict[str, str], calls: int) -> dict[str, list[float]]:
    clients = {
        name: openai.OpenAI(base_url=f"{base}/v1", api_key=text, max_retries=20) for name, text in credentials.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in clients}
    for call in range(calls + 5):
        for name, client in clients.items():
            began = time.perf_counter()
            client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hear ba ba"}], max_tokens=1, temperature=0
            )
            if call >= 5:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=300)


if __name__ == "__main__":
    main()
