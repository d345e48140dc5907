"""A fleet of real engines on devices that come and go, against an oracle that knows the trace: train steps and cost.

    python tests/benchmarks/spot_fleet.py --json FILE [--trace TRACE.json] [--seconds 360]

One installation with three devices for engines and one for the trainers. Its torch engines are paced
(`tests/support/paced_site`): a token of eight rows takes a declared time, so a fleet is as quick as it is large on any
number of cores. First fixed fleets of one, two and three engines train; then an elastic one (`rollout_devices: {min: 1,
max: 3}`) trains while devices are drained with `move` and enabled again as a trace says: `[{"at": seconds, "devices":
number}]`, recorded ones too; without one a walk of a seeded generator. The oracle has, at each moment, the rate of the
fixed fleet of as many engines as the trace leaves: none of its engines ever starts, loads or hands a reply over.
`share` is what the elastic fleet did of that. Tokens of replies that were sampled twice would be undelivered ones.
"""

import argparse
import json
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import start

from tests.support.chat_templates import small_chat_model
from tests.support.system import Api, System

ROOT = Path(__file__).resolve().parents[2]
MOST, PRICE = 3, 2.0
WITHIN_S = 600.0


def main() -> None:
    """Measure fixed fleets, play the trace with an elastic one, report the share."""
    report = start("spot_fleet", __doc__ or "", _options)
    seconds = 60.0 if report.quick else float(str(report.settings["seconds"]))
    steps = 3 if report.quick else int(str(report.settings["steps"]))
    given = report.settings["trace"]
    spot = json.loads(Path(str(given)).read_text()) if given else walk(int(str(report.settings["seed"])), seconds)
    with tempfile.TemporaryDirectory(prefix="flexmarl-spot-") as folder:
        Path(folder).chmod(0o711)
        model = small_chat_model(Path(folder) / "models" / "chat")
        environment = {
            "FLEXMARL_CPU_SHARES": str(MOST + 1),
            "FLEXMARL_MODEL_ROOTS": str(model.parent),
            "PYTHONPATH": f"{ROOT / 'tests' / 'support' / 'paced_site'}:{ROOT / 'platform'}:{ROOT}",
            "PACED_TOKEN_S": str(report.settings["token_s"]),
            "PACED_ROWS": "8",
        }
        with System(Path(folder) / "home", environment=environment) as system:
            api = system.api()
            priced(api)
            rates = {engines: fixed(api, model, engines, steps) for engines in range(1, MOST + 1)}
            report.figures |= {f"steps_s_of_{engines}": rate for engines, rate in rates.items()}
            report.figures |= elastic(api, model, spot, rates)
    report.settings["spot"] = spot
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, help="a recorded one, as JSON")
    parser.add_argument("--seconds", type=float, default=360.0, help="of the walk")
    parser.add_argument("--seed", type=int, default=0, help="of the walk")
    parser.add_argument("--steps", type=int, default=8, help="of a fixed fleet behind the first ones")
    parser.add_argument("--token-s", type=float, default=0.03, help="seconds for a token of eight rows")


def walk(seed: int, seconds: float) -> list[dict[str, float]]:
    """Return a walk between one device and all of them, with a change each 40 s in the mean."""
    rng, at, found, devices = random.Random(seed), 15.0, [], MOST
    while at < seconds:
        devices = rng.choice([number for number in range(1, MOST + 1) if number != devices])
        found.append({"at": round(at, 1), "devices": devices})
        at += max(20.0, rng.expovariate(1 / 40.0))
    return [*found, {"at": seconds, "devices": devices}]


def priced(api: Api) -> None:
    """Give the pool a price for a device-hour, so that costs are shown."""
    row = api.get("/pools/default")
    api.call("PATCH", "/pools/default", {"device_hour_price": PRICE}, If_Match=f'"{row["version"]}"')


def begun(api: Api, model: Path, name: str, devices: object, steps: int) -> dict[str, Any]:
    """Start a run whose replies are long, and whose trainers need little."""
    policy = {
        "model": {"type": "folder", "path": str(model)}, "tuning": {"type": "full"}, "precision": "fp32",
        "optimizer": {"type": "adamw", "learning_rate": 1e-5},
    }  # fmt: skip
    overrides = {
        "environment": {"reply_tokens": 36},
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 6, "episodes_per_task": 8, "micro_batch_groups": 2, "rollout_groups": 1},
        "resources": {"rollout_devices": devices, "training_devices": 1},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 10000, "tasks": 4},
        "checkpoints": {"every_steps": 10000},
    }
    return api.create_run(name=name, template="chat_sums", overrides=overrides)


def marks(api: Api, run_id: str) -> list[float]:
    """Return when each step of a run ended, in seconds of the clock."""
    path = f"/runs/{run_id}/series/data?names=reward/team&stat=mean&x=time&max_points=5000"
    found = api.get(path)["series"]
    return list(found[0]["x"]) if found else []


def fixed(api: Api, model: Path, engines: int, steps: int) -> float:
    """Train with a fixed fleet; return its steps a second behind the first three."""
    run = begun(api, model, f"fixed-{engines}", engines, steps + 3)
    ended = api.finish(run["id"], WITHIN_S)
    if ended["status"] != "completed":
        raise RuntimeError(f"{engines} engines: {ended['status']} {ended['reason_text']}")
    at = marks(api, run["id"])[2:]
    return (len(at) - 1) / (at[-1] - at[0])


def elastic(api: Api, model: Path, spot: list[dict[str, float]], rates: dict[int, float]) -> dict[str, float]:
    """Train while devices come and go; return the share of the oracle's steps, what got lost and what it cost."""
    run = begun(api, model, "spot", {"min": 1, "max": MOST}, 10000)
    api.wait(run["id"], lambda row: row["step"] >= 3 and row["progress"]["fleet"]["engines"] == MOST, WITHIN_S)
    began, gone = time.time(), list[str]()
    for change in spot:
        time.sleep(max(0.0, began + change["at"] - time.time()))
        gone = resized(api, gone, int(change["devices"]))
    step = api.run(run["id"])["step"]
    api.wait(run["id"], lambda row: row["step"] > step, WITHIN_S)
    resized(api, gone, MOST)
    stamps = marks(api, run["id"])
    api.act(run["id"], "stop")
    ended = api.finish(run["id"], WITHIN_S)
    stamps = [at for at in stamps if at >= began]
    wanted = oracle(spot, rates, stamps[0] - began, stamps[-1] - began)
    account, cost = ended["progress"]["tokens"], api.get(f"/runs/{run['id']}/cost")
    report = api.consistency(run["id"])
    if not all(check["ok"] for check in report["checks"]):
        raise RuntimeError(f"not consistent: {report}")
    print(json.dumps({"tokens": account, "cost": cost["cost"], "device_hours": cost["device_hours"]}))
    return {
        "changes": len(spot) - 1.0,
        "share": (len(stamps) - 1) / wanted,
        "steps": len(stamps) - 1.0,
        "undelivered_tokens": float(sum(account["undelivered"].values())),
        "cost_per_step": cost["cost"] / ended["step"],
    }


def resized(api: Api, gone: list[str], devices: int) -> list[str]:
    """Drain devices of engines, or enable drained ones, until so many are there; return which are drained."""
    gone = list(gone)
    while MOST - len(gone) < devices:
        act(api, gone.pop(), "enable", {})
    if MOST - len(gone) > devices:
        free = [row["id"] for row in api.get("/devices")["results"] if is_engine(row) and row["id"] not in gone]
        for device in free[: MOST - len(gone) - devices]:
            act(api, device, "drain", {"mode": "move"})
            gone.append(device)
    return gone


def is_engine(row: dict[str, Any]) -> bool:
    return row["lease"] is not None and row["lease"]["use"] == "engine"


def act(api: Api, device: str, verb: str, body: dict[str, Any]) -> None:
    row = api.get(f"/devices/{device}")
    api.call("POST", f"/devices/{device}/actions/{verb}", body, If_Match=f'"{row["version"]}"')


def oracle(spot: list[dict[str, float]], rates: dict[int, float], since: float, until: float) -> float:
    """Return the steps that fixed fleets of as many engines as there are devices make between two moments."""
    changes = [(float("-inf"), MOST), *((one["at"], int(one["devices"])) for one in spot), (float("inf"), 0)]
    spans = pairwise(changes)
    return sum(max(0.0, min(b, until) - max(a, since)) * rates[n] for (a, n), (b, _) in spans if n)


if __name__ == "__main__":
    main()
