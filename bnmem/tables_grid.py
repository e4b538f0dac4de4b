"""The grid in words: its rows, and what is missing of them."""

import math

from bnmem import exp_grid
from bnmem.exp_grid import Grid


def plan_lines(s: Grid, details: bool = False) -> list[str]:
    """What each tier holds and lacks, with an estimate of the time; with `details` a line a row."""
    plans = exp_grid.plan(s.rows())
    lines = []
    for tier in dict.fromkeys(plan.row.tier for plan in plans):
        rows = [plan for plan in plans if plan.row.tier == tier]
        missing = sum(plan.missing for plan in rows)
        total = sum(plan.total for plan in rows)
        lines.append(f"tier {tier}: {len(rows)} rows, {total} computations, {missing} missing{_time(rows)}")
        if details:
            lines += [f"  {plan.row.name}: {plan.total} computations, {plan.missing} missing" for plan in rows]
    return lines


def _time(rows: list[exp_grid.Plan]) -> str:
    known = [plan.hours for plan in rows if plan.missing and not math.isnan(plan.hours)]
    unknown = sum(math.isnan(plan.hours) for plan in rows)
    if not known and not unknown:
        return ""
    text = f", about {sum(known):.1f} hours of one core" if known else ""
    some = f"{unknown} row{'s' if unknown > 1 else ''}"
    return text + (f", {'plus ' if known else ''}{some} like no record so far, time unknown" if unknown else "")
