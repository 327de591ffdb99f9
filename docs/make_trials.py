"""Writes docs/trials.md from the JSON lines of two commands, as `make tables` does.

trialgym solvability --json > solvability.jsonl
trialgym canaries --json > canaries.jsonl
python docs/make_trials.py solvability.jsonl canaries.jsonl > docs/trials.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.solvability import NAIVE_CAP, REFERENCE_TARGET

Row = dict[str, Any]

HEAD = """# The trials in figures

Made by `make tables`; each figure is a simulation, on seeds from 0 on, and says how many episodes stand behind it.

## Can they be won?

The reference is the scripted expert, which sees what any agent sees. "Right" counts right decisions, in scenarios with an
effect and without; "wins" counts proofs of an effect where there is one. The naive policy enrols everybody at the highest dose and
never looks. Budget and time follow from the reference plan by inversion, with the tier's slack.
"""

CANARIES = """
## Does cheating pay?

The mean return of each policy, and how much less it is than the expert's, with the standard error of the difference on the same
seeds. The sheets of keyword_stuffing, flag_everything and echo_the_site are those of an expert in all else. `trialgym canaries
--loops` plays every loop of one and of two actions besides; a test holds that none has a positive mean reward beyond its
first pass.
"""


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def solvability(rows: list[Row]) -> str:
    """The table of how often the trials are won."""
    out = []
    for r in rows:
        tier = Tier[r["tier"].upper()]
        out.append(
            [
                r["scenario"],
                r["tier"],
                str(r["n_reference"]),
                f"{r['budget_usd'] / 1e6:.2f}",
                f"{r['time_days']:.0f}",
                f"{r['reference_success']:.0%} (≥ {REFERENCE_TARGET[tier]:.0%})",
                f"{r['reference_win']:.0%}",
                f"{r['naive_win']:.0%} (≤ {NAIVE_CAP[tier]:.0%})",
                f"{r['false_claims'] * r['nulls']:.0f} of {r['nulls']}",
            ]
        )
    headings = [
        "scenario",
        "tier",
        "patients",
        "budget, M USD",
        "days",
        "reference right",
        "reference wins",
        "naive wins",
        "false claims",
    ]
    return f"{rows[0]['runs']} episodes of each policy in each row.\n\n{table(headings, out)}\n"


def canaries(rows: list[Row]) -> str:
    """The table of what each policy earns, a block a scenario, a column a tier."""
    parts = [f"{rows[0]['episodes']} episodes of each policy in each cell: mean return, and margin to the expert.\n"]
    tiers = list(dict.fromkeys(r["tier"] for r in rows))
    for scenario in dict.fromkeys(r["scenario"] for r in rows):
        cells = {(r["policy"], r["tier"]): r for r in rows if r["scenario"] == scenario}
        body = []
        for policy in dict.fromkeys(policy for policy, _ in cells):
            line = [policy]
            for tier in tiers:
                r = cells[policy, tier]
                shown = f"{r['mean_return']:+.2f}"
                line.append(shown if policy == "expert" else f"{shown}, {r['margin']:+.2f} ± {r['margin_error']:.2f}")
            body.append(line)
        parts.append(f"### {scenario}\n\n{table(['policy', *tiers], body)}\n")
    return "\n".join(parts)


def main(solvability_file: str, canaries_file: str) -> None:
    """Prints the page."""
    read = [[json.loads(line) for line in Path(f).read_text().splitlines()] for f in (solvability_file, canaries_file)]
    sys.stdout.write(f"{HEAD}\n{solvability(read[0])}{CANARIES}\n{canaries(read[1])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
