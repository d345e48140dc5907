"""`python -m tests.gpu_check`, which `./scripts/gpu-check` starts."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from flexmarl.contracts.specification.team import PackageModel
from flexmarl.store.data.model_roots import ModelRoots
from tests.gpu_check import report
from tests.gpu_check.machine import CHAT_PACKAGE, ROOT, Machine, hindrance, this_machine
from tests.gpu_check.parts import PARTS, Model, Part
from tests.gpu_check.running import Outcome, Result, Runner, judged
from workers.models.opening import allow
from workers.models.places import folder_of

FOLDER = ROOT / "artifacts" / report.NAME


def chat_folder(home: Path) -> Path:
    """Return the chat model as a folder, made under `home` where it is not there yet."""
    allow(ModelRoots(), str(home))
    return Path(folder_of(PackageModel(name=CHAT_PACKAGE)))


def results(asked: argparse.Namespace, machine: Machine) -> Iterator[Result]:
    """Run the parts that are asked for, or say what would be run."""
    runner = Runner(asked.out, asked.device, asked.quick, {"FLEXMARL_VLLM_PYTHON": machine.vllm})
    for part in chosen(asked.only):
        reason = hindrance(part, machine, asked.device, asked.model, asked.quick)
        model = _shown(part, asked)
        if reason or asked.dry_run:
            outcome = Outcome.CANNOT if reason else Outcome.WOULD
            yield Result(
                part, outcome, " ".join(runner.command(part, model)), reason, figures=judged(part, None, False)
            )
            continue
        if part.model is Model.CHAT and not asked.quick:
            model = chat_folder(asked.out)
        yield runner.run(part, model)


def chosen(names: list[str]) -> list[Part]:
    return [part for part in PARTS if not names or part.name in names]


def _shown(part: Part, asked: argparse.Namespace) -> Path | None:
    """Return the folder of a part's model, for the chat model where it will be; none in the short form."""
    if asked.quick or part.model is Model.NONE:
        return None
    named: Path | None = asked.model
    return named or Path("FOLDER") if part.model is Model.NAMED else asked.out / "models" / CHAT_PACKAGE


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of a further model, such as one of 0.5 to 1.7 billion weights"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--dry-run", action="store_true", help="run nothing: say what would be run, and what cannot")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the check itself")
    parser.add_argument(
        "--quick", action="store_true", help="short form with a small random model; figures mean nothing"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the report")
    asked = parser.parse_args()
    asked.model = asked.model and asked.model.resolve()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    machine, done = this_machine(), list[Result]()
    for result in results(asked, machine):
        done.append(result)
        print(f"{result.part.name:<18} {result.outcome.value}: {result.reason or result.part.does}", flush=True)
        if asked.dry_run:
            print(f"{'':<18} {result.part.does}\n{'':<18} {result.command}")
        paths = report.write(asked.out, machine, asked.device, done)  # what is known outlives an end in the middle
    print("\n".join(f"report: {path}" for path in paths))
    sys.exit(0 if asked.dry_run else report.exit_code(done))


if __name__ == "__main__":
    main()
