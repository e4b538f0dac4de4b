"""The verdict rules: every claim has one, and each verdict can be reached."""

import pytest

from bnmem.rules import NOT, PARTLY, REPRODUCED, RULES, UNMEASURED, Cell, Metric, cell_status, verdict

METRIC = Metric("m", "says", 0.1)


def test_all_ten_claims_have_a_rule_and_only_the_theorems_have_no_metric():
    assert list(RULES) == [f"C{i}" for i in range(1, 11)]
    assert [claim for claim, rule in RULES.items() if not rule.metrics] == ["C6", "C7"]
    assert all(rule.states and rule.reading for rule in RULES.values())


@pytest.mark.parametrize(
    "effect, low, high, status",
    [
        (0.2, 0.05, 0.35, "holds"),
        (0.1, 0.01, 0.19, "holds"),
        (0.2, -0.01, 0.41, "open"),
        (0.08, 0.05, 0.11, "open"),
        (0.05, 0.01, 0.09, "fails"),
        (-0.2, -0.3, -0.1, "fails"),
        (0.2, float("nan"), float("nan"), "open"),
    ],
)
def test_a_cell_holds_fails_or_stays_open(effect, low, high, status):
    assert cell_status(Cell("m", "here", effect, low, high), METRIC) == status


def cells(*effects):
    return [
        Cell(m.name, f"cell {i}", e, e - 0.01, e + 0.01) for i, e in enumerate(effects) for m in RULES["C5"].metrics
    ]


def test_a_verdict_needs_every_cell_none_or_some():
    assert verdict("C5", cells(0.05, 0.06)) == REPRODUCED
    assert verdict("C5", cells(0.05, -0.06)) == PARTLY
    assert verdict("C5", cells(-0.05, -0.06)) == NOT
    assert verdict("C5", []) == UNMEASURED
    assert verdict("C1", [Cell("corrupted_accuracy", "x", 1.0, 0.9, 1.1)]) == UNMEASURED  # one of two metrics
    with pytest.raises(ValueError, match="theorem"):
        verdict("C6", [])


def test_the_rules_are_older_than_every_record(committed):
    """The last change to a margin or a claim must come before the first record that it judges."""
    import json
    import subprocess

    from .conftest import ROOT

    git = ["git", "log", "--format=%cI", "-G", r"Metric\(|margin", "--", "bnmem/rules.py"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip() or shallow.stdout.strip() == "true":
        pytest.skip("no git history here")
    from datetime import datetime

    changed = datetime.fromisoformat(done.stdout.split()[0])
    starts = [json.loads(p.read_bytes())["provenance"]["start"] for p in committed.glob("*/*.json")]
    assert changed < min(datetime.fromisoformat(s) for s in starts)
