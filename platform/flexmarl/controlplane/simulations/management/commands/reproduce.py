"""`manage.py reproduce`: published tables beside what the simulator says of the same settings."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.simulations.management.options import check_writable
from flexmarl.simulator import SimulationError
from flexmarl.simulator.published import (
    FigureCounts,
    PublishedRow,
    PublishedTable,
    ReproducedCell,
    Reproduction,
    counted,
    load_tables,
    reproduce,
    total,
)
from flexmarl.simulator.published.fitting import fit
from flexmarl.simulator.published.reproducing import ends


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
            self._list(known)
            return
        names = list(known) if "all" in options["tables"] else options["tables"]
        if unknown := [name for name in names if name not in known]:
            raise CommandError(f"{', '.join(unknown)}: unknown table. Known: {', '.join(known)}.")
        written, failed = {}, []
        for name in names:
            with collected_seldom():
                outcome, left = self._table(name, known[name], options)
            written[name] = _document(known[name], outcome) | {"leave_one_out": left}
            failed += [f"{name}: {_title(known[name], cell)}" for cell in outcome.failed]
        if options["json"]:
            options["json"].write_text(json.dumps(written, indent=1))
        if failed:
            raise CommandError("Not within tolerance: " + "; ".join(failed))

    def _list(self, known: dict[str, PublishedTable]) -> None:
        """Show the tables with their counts; the sum is of what others published alone."""
        for name, table in known.items():
            self.stdout.write(
                f"{name:<24} {table.title} ({table.source}). {_counts(counted(table))}{_KINDS[table.kind]}"
            )
        self.stdout.write(f"{'published figures':<24} {_counts(total(known.values()))}")

    def _table(
        self, name: str, table: PublishedTable, options: dict[str, Any]
    ) -> tuple[Reproduction, dict[str, float]]:
        judged = (
            "at least the target"
            if table.kind == "sought"
            else f"within {table.tolerance:.0%}, or in the published range"
        )
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
            self.stdout.write(
                f"  {name} = {values.get(name, own.value):.6g}, {own.source.replace('_', ' ')}{rows}: {own.note}"
            )
        for name, seen in table.chosen.items():
            self.stdout.write(f"  {name}, chosen: {seen}")

    def _rows(self, table: PublishedTable, outcome: Reproduction) -> None:
        width = max(len(_title(table, name)) for name in outcome.cells)
        stated = "sought" if table.kind == "sought" else "published"
        for name, cell in outcome.cells.items():
            row, figure = _parts(table, name)
            over = row.over or (table.ratios_over if figure in row.gains else "")
            gain = f" over {table.rows[over].title}" if over and figure not in row.beside else ""
            ratio = outcome.ratios.get(name)
            beside = f"; ratio {_shown(ratio)}" if ratio else ""
            self.stdout.write(f"{_title(table, name):<{width}} {stated} {_shown(cell)}{gain}{beside}")
            whys = [row.misses.get(key, "") for key in (figure, f"{figure}_ratio")]
            for why in dict.fromkeys(filter(None, whys)):
                self.stdout.write(f"{'':<{width}} {why}")
        if table.ratios_over:
            self.stdout.write(f"Ratios are to {table.rows[table.ratios_over].title}, published and simulated.")
        self.stdout.write(f"{_counts(counted(table))}{_KINDS[table.kind]}. {table.remarks}")

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


_KINDS = {
    "published": "",
    "again": "; figures of another table, counted there, none has to be reached",
    "own": "; of this project's own, counted nowhere",
    "sought": "; sought by this project, counted nowhere",
}


def _counts(found: FigureCounts) -> str:
    return (
        f"{found.figures} figures: {found.fitted} fitted, {found.taken_over} taken over, {found.chosen} chosen "
        f"knowing them, {found.free} free"
    )


def _shown(cell: ReproducedCell) -> str:
    low, high = ends(cell.published)
    published = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    return f"{published:>9}  simulated {cell.simulated:>9.4g}  {cell.error:>+7.1%}  {cell.standing}"


def _parts(table: PublishedTable, cell: str) -> tuple[PublishedRow, str]:
    """Return the row of a cell and the name of its figure."""
    row, _, figure = cell.partition(".")
    return table.rows[row], figure or table.figure


def _title(table: PublishedTable, cell: str) -> str:
    """Say which row a figure is of, and which figure where it is not the table's own."""
    row, _, figure = cell.partition(".")
    return f"{table.rows[row].title}: {figure}" if figure else table.rows[row].title


def _document(table: PublishedTable, outcome: Reproduction) -> dict[str, Any]:
    return {
        "source": table.source,
        "kind": table.kind,
        "figure": table.figure,
        "parameters": {name: own.model_dump() for name, own in table.parameters.items()},
        "chosen": table.chosen,
        "counts": asdict(counted(table)),
        "rows": {
            name: _cell(cell) | {
                "ratio": _cell(outcome.ratios[name]) if name in outcome.ratios else None,
                "misses": table.rows[row].misses, "figures": outcome.figures[row],
            }
            for name, cell in outcome.cells.items()
            for row in [name.partition(".")[0]]
        },
    }  # fmt: skip


def _cell(cell: ReproducedCell) -> dict[str, Any]:
    return {"published": cell.published, "simulated": cell.simulated, "error": cell.error, "standing": cell.standing}
