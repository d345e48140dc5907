"""Do two whole installations gain by sharing? Each with its own services, beside one exchange, at equal own rollouts.

Two `manage.py up`, each with home, database and workers of its own, and the exchange as a process of its own, where
both are enrolled as an operator does it. Of each seed both train at the same time: alone in groups of `--own` members,
then with as many members of the other one's besides. Their small chat models were warmed up on sentences
(`tests.support.shared_sums`) that know other halves of the sums. Compared is the greedy success on the sums that are
played, at the same numbers of episodes that the own engines played: as the mean of evaluations along the way (area) and
of the last ones (end), per installation, with the bootstrap interval of the mean difference. All is asked over REST.

No prompt of a dataset is on both of its sides. A sum is held out as a prompt that names the system message which the
chat template writes by itself; the model reads the same tokens. Sums are those for which the split falls that way.
"""

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

from harness import start

from flexmarl.controlplane.datasets.mapping import ShareSplit, prompt_hash, sides
from flexmarl.language.messages import Message
from tests.benchmarks.task_choice_learning import compared
from tests.support import shared_sums
from tests.support.exchange import Exchange
from tests.support.system import Api, System
from workers.rollout.datasets import DatasetLines

WITHIN_S = 900.0
GROUPS, LAST, LARGEST = 8, 3, 9
ARMS = ("alone", "shared")
SPLIT = ShareSplit(share=0.5)
QUOTA = ("--rollouts-per-minute", "100000", "--bytes-per-minute", str(2**30))


def main() -> None:
    """Train pairs alone and sharing, report what each installation gained."""
    report = start("sharing_installations", __doc__ or "", _options)
    given = argparse.Namespace(**report.settings)
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="flexmarl-sharing-") as folder, ExitStack() as running:
        home = Path(folder)
        home.chmod(0o711)
        exchange = running.enter_context(Exchange(home / "exchange", *QUOTA))
        pair = [running.enter_context(installation(home, exchange, f"lab-{name}")) for name in "ab"]
        training, held_out = rows_of(given)
        lines = DatasetLines((b"",) * len(training), (b"",) * len(held_out))
        for system in pair:
            put_dataset(system.api(), [*training, *held_out])
        seeds = range(given.first_seed, given.first_seed + (1 if report.quick else given.seeds))
        for seed in seeds:
            for arm in ARMS:
                rows += trained(pair, arm, seed, given, home, lines)
                print(rows[-2], rows[-1], sep="\n", flush=True)
    for figure in ("area", "end"):
        report.figures |= {f"{figure}_{name}": value for name, value in compared(rows, figure, *ARMS).items()}
        by = {(row["arm"], row["seed"]): row[figure] for row in rows}
        gains = [by["shared", seed] - by["alone", seed] for arm, seed in by if arm == "alone"]
        report.figures |= {f"{figure}_least_gain": min(gains), f"{figure}_gained": sum(gain > 0 for gain in gains)}
    report.figures["installations"] = len(rows) // 2
    report.settings |= {"rows": rows, "load_after": round(os.getloadavg()[0], 2)}
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30, help="of each run; both sides are read up to those of `alone`")
    parser.add_argument("--evaluations", type=int, default=6, help="along the way, at equal own episodes")
    parser.add_argument("--own", type=int, default=4, help="members of a group that the own engines play")
    parser.add_argument("--rates", type=float, nargs=2, default=[0.0005, 0.0005], help="alone and sharing")
    parser.add_argument("--learn-from", choices=("all", "successes"), default="successes")
    parser.add_argument("--sums", type=int, default=12)
    parser.add_argument("--right", type=float, default=0.9, help="share of right sentences in the half that one knows")
    parser.add_argument("--warmup", type=int, default=300)


def installation(home: Path, exchange: Exchange, name: str) -> System:
    """Return an installation that is enrolled at the exchange, with all of its projects."""
    access = exchange.enrolled(name)
    settings = {
        "FLEXMARL_MODEL_ROOTS": str(home),
        "FLEXMARL_CPU_SHARES": "2",
        "FLEXMARL_EXCHANGE_URL": access.url,
        "FLEXMARL_EXCHANGE_MEMBER": access.member,
        "FLEXMARL_EXCHANGE_KEY": access.key.hex(),
        "FLEXMARL_EXCHANGE_PROJECTS": "default",
    }
    return System(home / name, environment=settings)


def rows_of(given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows to train on and one of each sum to evaluate, as they are uploaded."""
    every = shared_sums.sums_of((LARGEST + 1) ** 2, LARGEST)
    fits = [sides([prompt_hash(asked(*one, held)) for held in (False, True)], SPLIT) == [False, True] for one in every]
    sums = [one for one, right in zip(every, fits, strict=True) if right][: given.sums]
    assert len(sums) == given.sums
    training = []
    for row in shared_sums.rows_of(sums, 40, given.right, 0):
        training.append({"messages": told(row.messages), "answer": row.answer, **row.columns})
    columns = {name: "" for name in training[0] if name.startswith("said")}
    held_out = [{"messages": told(asked(*one, True)), "answer": str(sum(one)), **columns} for one in sums]
    return training, held_out


def asked(first: int, second: int, held_out: bool) -> tuple[Message, ...]:
    system = (Message("system", "You help."),) if held_out else ()
    return (*system, Message("user", f"{first}+{second}?"))


def told(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def put_dataset(api: Api, rows: list[dict[str, Any]]) -> None:
    body = "\n".join(map(json.dumps, rows)).encode()
    file = api.call("POST", "/datasets/files?name=sums.jsonl", body)
    mapping = {"messages": "messages", "answer": "answer"}
    made = api.post(
        "/datasets", {"name": "sums", "file": file["digest"], "mapping": mapping, "split": SPLIT.model_dump()}
    )
    held_out = sum(row["messages"][0]["role"] == "system" for row in rows)
    assert (made["training"], made["held_out"]) == (len(rows) - held_out, held_out)


def trained(
    pair: list[System], arm: str, seed: int, given: argparse.Namespace, home: Path, lines: DatasetLines
) -> list[dict[str, Any]]:
    """Train in both installations at the same time; return what each came to."""
    runs = []
    for place, system in enumerate(pair):
        spec = shared_sums.document(home, lines, given.rates[ARMS.index(arm)], given.warmup, f"said_{place}")
        spec["environment"]["dataset"] = {"name": "sums"}
        spec["policies"]["solver"]["warmup"]["demonstrations"]["dataset"] = {"name": "sums"}
        shares = arm == "shared"
        sharing = {
            "type": "exchange", "task_set": f"sums_{seed}", "foreign": given.own, "learn_from": given.learn_from,
        }  # fmt: skip
        spec |= {
            "seed": 2 * seed + place,
            "batch": {
                "tasks_per_step": GROUPS, "micro_batch_groups": GROUPS, "rollout_groups": GROUPS,
                "episodes_per_task": given.own * (2 if shares else 1),
            },
            "sampling": {"sharing": sharing if shares else "none"},
            "budget": {"train_steps": given.steps, "target": None},
            "evaluation": {"every_steps": 1, "tasks": len(lines.held_out)},
        }  # fmt: skip
        runs.append(system.api().create_run(name=f"{arm}-{seed}", template=shared_sums.TEMPLATE, spec=spec))
    found = []
    for place, (system, run) in enumerate(zip(pair, runs, strict=True)):
        ended = system.api().finish(run["id"], WITHIN_S)
        if ended["status"] != "completed":
            raise RuntimeError(f"{arm} {seed}: {ended['status']} {ended['reason_text']}")
        found.append({"arm": arm, "seed": 2 * seed + place, **read(system.api(), run["id"], arm, given)})
    return found


def read(api: Api, run_id: str, arm: str, given: argparse.Namespace) -> dict[str, Any]:
    """Read the success at equal numbers of own episodes: of the last step that had no more of them."""
    ((steps, solved),) = api.series(run_id, "eval/solved").values()
    others = [0.0] * given.steps
    for at, values in api.series(run_id, "episodes/shared").values():
        for step, value in zip(at, values, strict=True):
            others[int(step) - 1] = value
    members = GROUPS * given.own * (2 if arm == "shared" else 1)
    own = [0, *accumulate(members - int(shared) for shared in others)]
    at = dict(zip(map(int, steps), solved, strict=True))
    last = given.steps * GROUPS * given.own
    marks = [last * (number + 1) // given.evaluations for number in range(given.evaluations)]
    chosen = [max(step for step in at if own[step] <= mark) for mark in marks]
    scores = [at[step] for step in chosen]
    return {
        "first": at[0], "solved": scores, "steps": chosen, "own": [own[step] for step in chosen],
        "shared_in": int(sum(others)), "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
