"""`trialgym canaries` and `trialgym solvability`: what playing well pays, and that nothing else does.

The trials run in this process, on the same rules as the service's; the answer sheets are scored by the grader.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from trialgym.aio import AsyncClient
from trialgym.cli.exits import FAILED, OK, Refusal
from trialgym.cli.local import session
from trialgym.cli.trials import ANSWERS, domain_submission
from trialgym.rpc import names
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import grader_service_pb2, task_pb2
from workflow_service.domain.environment import Grade, GradeCall, Submission, TaskFamily, TaskRef
from workflow_service.domain.trial import canaries, solvability
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies import Sheets
from workflow_service.domain.trial.scenarios import scenario_ids

TASKS = ("protocol_amendment_review", "eligibility_screening", "ae_classification")
RUBRIC = "structured"


def show_canaries(
    *, scenarios: Sequence[str], tiers: Sequence[str], episodes: int, loops: bool, as_json: bool, target: str | None
) -> int:
    """Plays every policy and prints a row for each. Returns FAILED where one beats the expert beyond chance."""
    with session("grader", target) as grader:
        bench = grader.run(_bench(grader.client))
    makers = canaries.roster(bench, loops=loops)
    rows = canaries.run(bench, scenarios=_scenarios(scenarios), tiers=_tiers(tiers), episodes=episodes, makers=makers)
    total = len(_scenarios(scenarios)) * len(_tiers(tiers)) * len(makers)
    shown = list(_emitted(rows, total, as_json))
    paid = [row for row in shown if row.pays]
    open_ = [row for row in shown if row.policy != "expert" and row.margin <= 0 and not row.pays]
    if not as_json:
        _print(
            f"What each policy earns: {episodes} episodes each on the same seeds",
            ("scenario", "tier", "policy", "mean return", "spread", "success", "margin to the expert"),
            (
                (
                    r.scenario,
                    r.tier,
                    r.policy,
                    f"{r.mean_return:+.2f}",
                    f"{r.spread:.2f}",
                    f"{r.success_rate:.0%}",
                    f"{r.margin:+.2f}",
                )
                for r in shown
            ),
        )
        _verdict(len(shown), paid, open_)
    return FAILED if paid else OK


def _verdict(count: int, paid: list[canaries.Row], undecided: list[canaries.Row]) -> None:
    def places(rows: list[canaries.Row]) -> str:
        return ", ".join(f"{row.policy} in {row.scenario} at {row.tier}" for row in rows)

    console = Console()
    if paid:
        console.print(f"{len(paid)} of {count} rows beat the expert: {places(paid)}", style="red", soft_wrap=True)
    elif undecided:
        told = f"Nothing beats the expert; undecided at so few episodes: {places(undecided)}"
        console.print(told, style="yellow", soft_wrap=True)
    else:
        console.print("Everything stays below the expert", style="green", soft_wrap=True)


def show_solvability(*, scenarios: Sequence[str], tiers: Sequence[str], runs: int, as_json: bool) -> int:
    """Prints how often the reference and the naive policy win. Returns FAILED where a target is missed."""
    rows = solvability.table(runs, _scenarios(scenarios), _tiers(tiers))
    shown = list(_emitted(rows, len(_scenarios(scenarios)) * len(_tiers(tiers)), as_json))
    if not as_json:
        _print(
            f"How often the reference and the naive policy succeed: {runs} episodes each",
            (
                "scenario",
                "tier",
                "patients",
                "budget USD",
                "days",
                "reference right",
                "reference wins",
                "naive wins",
                "false claims",
                "",
            ),
            (
                (
                    r.scenario,
                    r.tier,
                    str(r.n_reference),
                    f"{r.budget_usd:,.0f}",
                    f"{r.time_days:,.0f}",
                    f"{r.reference_success:.0%} (≥ {solvability.REFERENCE_TARGET[Tier[r.tier.upper()]]:.0%})",
                    f"{r.reference_win:.0%}",
                    f"{r.naive_win:.0%} (≤ {solvability.NAIVE_CAP[Tier[r.tier.upper()]]:.0%})",
                    f"{r.false_claims:.1%} of {r.nulls}",
                    "" if r.meets_targets else "missed",
                )
                for r in shown
            ),
        )
    return OK if all(row.meets_targets for row in shown) else FAILED


def _emitted(rows: Iterator[Any], total: int, as_json: bool) -> Iterator[Any]:
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(dataclasses.asdict(row)) + "\n")
            sys.stdout.flush()
            yield row
        return
    console = Console(stderr=True)
    yield from track(rows, total=total, description="playing", console=console, transient=True, disable=not console.is_terminal)


def _print(title: str, headings: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("scenario", "tier", "policy", "") else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _scenarios(chosen: Sequence[str]) -> tuple[str, ...]:
    there = scenario_ids()
    wanted = tuple(name.removeprefix("scenarios/") for name in chosen) or there
    for name in wanted:
        if name not in there:
            raise Refusal(f"there is no scenario {name!r}; use one of {', '.join(there)}")
    return wanted


def _tiers(chosen: Sequence[str]) -> tuple[Tier, ...]:
    for name in chosen:
        if name.upper() not in Tier.__members__:
            raise Refusal(f"there is no tier {name!r}; use one of {', '.join(t.name.lower() for t in Tier)}")
    return tuple(Tier[name.upper()] for name in chosen) or tuple(Tier)


async def _bench(client: AsyncClient) -> canaries.Bench:
    """The review tasks, with every sheet that a policy may submit scored beforehand."""
    tasks = {family: await client.get_task(names.task(family)) for family in TASKS}
    refs = {TaskFamily(task.family): _ref(task) for task in tasks.values()}
    sheets: dict[str, dict[TaskFamily, Submission]] = {name: {} for name in ANSWERS}
    grades: dict[tuple[str, str], Grade] = {}
    for task in tasks.values():
        for name, answer in ANSWERS.items():
            sheet = answer(task)
            kept = domain_submission(sheet)
            sheets[name][TaskFamily(task.family)] = kept
            scored = (await client.grade_batch([(task.name, sheet)], rubric=RUBRIC))[0]
            if isinstance(scored, TrialgymError):
                raise scored
            grades[task.name, kept.digest] = _grade(scored)

    def grader(call: GradeCall) -> Grade:
        return grades[call.task.name, call.submission.digest]

    return canaries.Bench(
        review_tasks=tuple(refs.values()),
        grader=grader,
        honest=_sheets(sheets["expert"]),
        cheating={name: _sheets(by_family) for name, by_family in sheets.items() if name != "expert"},
    )


def _sheets(by_family: dict[TaskFamily, Submission]) -> Sheets:
    get: Callable[[TaskFamily], Submission | None] = by_family.get
    return get


def _ref(task: task_pb2.Task) -> TaskRef:
    versions = {rubric.name: rubric.version for rubric in task.rubrics}
    return TaskRef(task.name, TaskFamily(task.family), task.content_digest, RUBRIC, task.max_steps, versions[RUBRIC])


def _grade(response: grader_service_pb2.GradeResponse) -> Grade:
    score = response.score
    return Grade(
        value=score.value,
        points=score.points,
        max_points=score.max_points,
        feedback=score.feedback,
        rubric=score.rubric.name,
        rubric_version=score.rubric.version,
        content_digest=score.content_digest,
        accepted_entries=score.accepted_entries,
        invalid_entries=score.invalid_entries,
    )
