"""Versions and the staleness that each finished step measured, per policy. Reads only; every query carries the run."""

from psycopg import Connection

FIGURES = {
    ("staleness/own_max", "max"): "own_max",
    ("staleness/start", "mean"): "own_mean",
    ("staleness/start", "p99"): "own_p99",
    ("staleness/completion", "mean"): "completion_mean",
    ("staleness/token", "mean"): "token_mean",
    ("length/trained_ratio", "mean"): "trained_length_ratio",
}
"""(series, statistic) -> name of the figure: own lag from a row's first token, from its completion and per
token, and the length of what was trained over the length of what was generated."""


def committed(conn: Connection, run_id: int) -> dict[str, int]:
    """Return the newest committed version of every policy."""
    rows = conn.execute(
        "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %s GROUP BY 1", [run_id]
    ).fetchall()
    return {str(policy): int(version) for policy, version in rows}


def steps(conn: Connection, run_id: int, after: int) -> dict[str, dict[int, dict[str, float]]]:
    """Return policy -> step -> figures of the steps behind one."""
    rows = conn.execute(
        "SELECT agent, step, name, stat, value FROM store.metric "
        "WHERE run_id = %s AND name = ANY(%s) AND agent <> '' AND step > %s",
        [run_id, sorted({name for name, _ in FIGURES}), after],
    ).fetchall()
    found: dict[str, dict[int, dict[str, float]]] = {}
    for policy, step, name, stat, value in rows:
        figure = FIGURES.get((name, stat))
        if figure is not None:
            found.setdefault(policy, {}).setdefault(int(step), {})[figure] = float(value)
    return found
