"""`manage.py reproduce`: published tables beside what the simulator says of the same settings."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.simulations.management.options import check_writable
from flexmarl.simulator import SimulationError
from flexmarl.simulator.published import PublishedTable, Reproduction, load_tables, reproduce
from flexmarl.simulator.published.fitting import fit


class Command(BaseCommand):
    """Needs no database and no service."""

    help = "Reproduce published tables in the simulator; without a name, list the tables."
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take which table, and what is done with its parameters."""
        parser.add_argument("tables", nargs="*", help=f"names ({', '.join(load_tables())}), or `all`")
        parser.add_argument("--fit", action="store_true", help="fit the fitted parameters again, on their own rows")
        parser.add_argument("--leave-one-out", action="store_true", help="also fit without each of these rows in turn")
        parser.add_argument("--rounds", type=int, default=60, help="maximum simulations of the rows per fit")
        parser.add_argument("--json", type=Path, help="write all figures here")

    def handle(self, *args: Any, **options: Any) -> None:
        """Play the tables; ends with an error when a row that has to be reached is not."""
        known = load_tables()
        check_writable(options, "json")
        if options["rounds"] < 1:
            raise CommandError(f"--rounds is a whole number from 1; it is {options['rounds']}.")
        if not options["tables"]:
            if options["fit"] or options["leave_one_out"] or options["json"]:
                raise CommandError(f"Name a table, or all: {', '.join(known)}.")
            for name, table in known.items():
                self.stdout.write(f"{name:<24} {table.title} ({table.source})")
            return
        names = list(known) if "all" in options["tables"] else options["tables"]
        if unknown := [name for name in names if name not in known]:
            raise CommandError(f"{', '.join(unknown)}: unknown table. Known: {', '.join(known)}.")
        written, missed = {}, []
        for name in names:
            with collected_seldom():
                outcome, left = self._table(name, known[name], options)
            written[name] = _document(known[name], outcome) | {"leave_one_out": left}
            missed += [f"{name}: {_title(known[name], cell)}" for cell in outcome.missed]
        if options["json"]:
            options["json"].write_text(json.dumps(written, indent=1))
        if missed:
            raise CommandError("Not within tolerance: " + "; ".join(missed))

    def _table(
        self, name: str, table: PublishedTable, options: dict[str, Any]
    ) -> tuple[Reproduction, dict[str, float]]:
        judged = "at least the target" if table.sought else f"within {table.tolerance:.0%}"
        self.stdout.write(f"\n{table.title} ({table.source}); {table.figure}, {judged}")
        values: dict[str, float] = {}
        try:
            if options["fit"]:
                values = fit(table, options["rounds"])
            self._parameters(table, values)
            outcome = reproduce(table, values)
            self._rows(table, outcome)
            left = self._left_out(table, options["rounds"]) if options["leave_one_out"] else {}
        except SpecProblems as refused:
            raise CommandError(
                f"{name}: " + "\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)
            ) from refused
        except SimulationError as ended:
            raise CommandError(f"{name}: {ended}") from ended
        return outcome, left

    def _parameters(self, table: PublishedTable, values: dict[str, float]) -> None:
        for name, own in table.parameters.items():
            rows = f" on {', '.join(own.fitted_on)}" if own.fitted_on else ""
            self.stdout.write(f"  {name} = {values.get(name, own.value):.6g}, {own.source}{rows}: {own.note}")

    def _rows(self, table: PublishedTable, outcome: Reproduction) -> None:
        width = max(len(_title(table, name)) for name in outcome.cells)
        stated = "sought" if table.sought else "published"
        for name, cell in outcome.cells.items():
            row = table.rows[name.partition(".")[0]]
            over = f" over {table.rows[row.over].title}" if row.over and name in table.rows else ""
            self.stdout.write(
                f"{_title(table, name):<{width}} {stated} {cell.published:>9.4g}  simulated {cell.simulated:>9.4g}  "
                f"{cell.error:>+7.1%}  {cell.standing}{over}"
            )
            if row.why and name in table.rows:
                self.stdout.write(f"{'':<{width}} {row.why}")
        judged = len(outcome.cells)
        self.stdout.write(f"{judged} figures, {outcome.freedom} of them not determined by the fit. {table.remarks}")

    def _left_out(self, table: PublishedTable, rounds: int) -> dict[str, float]:
        """Predict each fitted row by parameters that were fitted without it, where the others suffice for these."""
        found: dict[str, float] = {}
        rows, numbers = len(table.fitted()), sum(own.source == "fitted" for own in table.parameters.values())
        if rows <= numbers:
            self.stdout.write(f"  fitted numbers: {numbers}, rows for them: {rows}; too few would be left without one")
            return found
        for name in sorted(table.fitted()):
            cell = reproduce(table, fit(table, rounds, without=name)).cells[name]
            found[name] = cell.error
            self.stdout.write(f"  fitted without {table.rows[name].title}: {cell.simulated:.4g}, {cell.error:+.1%}")
        return found


def _title(table: PublishedTable, cell: str) -> str:
    """Say which row a figure is of, and which figure where it is not the table's own."""
    row, _, figure = cell.partition(".")
    return f"{table.rows[row].title}: {figure}" if figure else table.rows[row].title


def _document(table: PublishedTable, outcome: Reproduction) -> dict[str, Any]:
    return {
        "source": table.source,
        "figure": table.figure,
        "parameters": {name: own.model_dump() for name, own in table.parameters.items()},
        "freedom": outcome.freedom,
        "rows": {
            name: {
                "published": cell.published, "simulated": cell.simulated, "error": cell.error,
                "standing": cell.standing, "why": table.rows[row].why, "figures": outcome.figures[row],
            }
            for name, cell in outcome.cells.items()
            for row in [name.partition(".")[0]]
        },
    }  # fmt: skip
