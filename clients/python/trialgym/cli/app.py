"""The commands and their flags. What a command needs is imported when it runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trialgym.cli.exits import HELP, reported

app = typer.Typer(
    name="trialgym",
    help="Clinical-trial work as reinforcement-learning environments over gRPC.",
    epilog=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tasks_app = typer.Typer(help="List the review tasks, or show one.", epilog=HELP, rich_markup_mode=None)
app.add_typer(tasks_app, name="tasks")

Target = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="TRIALGYM_TARGET",
        help="The workflow service to use; without it one is started in this process.",
    ),
]
GraderTarget = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", envvar="TRIALGYM_GRADER_TARGET", help="The grader to use; without it one is started in this process."
    ),
]
Rubric = Annotated[str, typer.Option(metavar="keyword|structured", help="The rubric; the task's default where left out.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seeds all chance in the episode and in the policy.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines, for machines.")]
Task = Annotated[str | None, typer.Option(metavar="NAME", help="A review task, such as ae_classification.")]
Scenario = Annotated[str | None, typer.Option(metavar="NAME", help="A trial's scenario.")]
Tier = Annotated[str | None, typer.Option(metavar="TIER", help="warmup, beginner, intermediate, advanced or expert.")]


@app.command(epilog=HELP)
@reported
def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The workflow's port; 0 takes a free one. [default: 50051]")
    ] = None,
    grader_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The grader's port; 0 takes a free one. [default: 50052]")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="FILE|memory", help="Where episodes are kept. [default: trialgym.sqlite3]")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes that serve the workflow on one port; not with memory. [default: 1]"),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least level that is logged, to standard error.")
    ] = "warning",
    demo: Annotated[bool, typer.Option("--demo", help="First play an episode of each kind, as a client would.")] = False,
) -> None:
    """Start both services on loopback and serve until Ctrl-C.

    Settings that have no flag here are read from the environment, TRIALGYM_WORKFLOW_* and TRIALGYM_GRADER_*.
    """
    from trialgym.cli.serving import serve as run

    raise typer.Exit(run(port, grader_port, store, workers, log_level, demo=demo))


@app.command(epilog=HELP)
@reported
def grade(
    jsonl: Annotated[str, typer.Option("--jsonl", metavar="FILE|-", help="The answer sheets, one JSON object a line.")],
    rubric: Rubric = "",
    target: GraderTarget = None,
) -> None:
    """Score answer sheets: JSON lines in, JSON lines out, in the same order.

    A line in: {"task": NAME, "findings": [...], "rationale": TEXT}. Findings are read as models write them: finding_type,
    subject_id, severity, description, recommendation, and claims in the contract's JSON. A line out: line, task, points,
    max_points, score, rubric, components; or line and error with code, reason, message, field.
    """
    from trialgym.cli.grading import grade_lines

    raise typer.Exit(grade_lines(jsonl, rubric, target))


@app.command(epilog=HELP)
@reported
def play(
    environment: Annotated[Literal["review", "trial"], typer.Option(help="What to play.")] = "review",
    task: Task = None,
    scenario: Scenario = None,
    tier: Tier = None,
    seed: Seed = 0,
    rubric: Rubric = "",
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="expert, random, empty, stuffer and others; an unknown name lists them all.")
    ] = "expert",
    actions: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Take these actions, proto JSON lines, instead of a policy's.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line for each transition, in proto JSON (lowerCamelCase), and nothing else.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the whole observation after each step.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trajectory to a file that replay reads.")] = None,
    target: Target = None,
) -> None:
    """Play an episode and show observations, rewards by term, and the return."""
    from trialgym.cli import playing
    from trialgym.cli.starts import start_of

    start = start_of(environment, task=task, scenario=scenario, tier=tier, seed=seed, rubric=rubric)
    if actions is None:
        playing.check_policy(policy, trial=environment == "trial")
    wanted = playing.Play(start, policy, seed, actions, as_json, verbose, save)
    raise typer.Exit(playing.play(wanted, target))


@app.command(epilog=HELP)
@reported
def replay(
    trajectory: Annotated[
        str, typer.Argument(metavar="EPISODE|FILE", help="An episode's name, or a saved trajectory; - reads one.")
    ],
    task: Task = None,
    scenario: Scenario = None,
    tier: Tier = None,
    seed: Seed = 0,
    rubric: Rubric = "",
    target: Target = None,
) -> None:
    """Play a stored trajectory again from the same start and compare rewards, terms and state hashes step by step.

    Ends with 1 at the first difference. A file that `play --save` wrote says how its episode starts. For the output of
    `play --json` alone, give the seed if it was not 0, and for a trial scenario and tier.
    """
    from trialgym.cli.replaying import replay as run
    from trialgym.cli.starts import start_of

    start = None
    if task is not None or scenario is not None:
        environment = "review" if scenario is None else "trial"
        start = start_of(environment, task=task, scenario=scenario, tier=tier, seed=seed, rubric=rubric)
    raise typer.Exit(run(trajectory, start, seed, target))


Scenarios = Annotated[list[str] | None, typer.Option("--scenario", metavar="NAME", help="Only this scenario; may be repeated.")]
Tiers = Annotated[list[str] | None, typer.Option("--tier", metavar="TIER", help="Only this tier; may be repeated.")]


@app.command(epilog=HELP)
@reported
def canaries(
    scenario: Scenarios = None,
    tier: Tiers = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each policy, on the same seeds.")] = 40,
    loops: Annotated[bool, typer.Option(help="Also every loop of one and of two actions: some hundred policies more.")] = False,
    as_json: Json = False,
    target: GraderTarget = None,
) -> None:
    """Play the expert and every cheat in every scenario and tier, and show that cheating does not pay."""
    from trialgym.cli.canaries import show_canaries

    raise typer.Exit(
        show_canaries(scenarios=scenario or (), tiers=tier or (), episodes=episodes, loops=loops, as_json=as_json, target=target)
    )


@app.command(epilog=HELP)
@reported
def solvability(
    scenario: Scenarios = None,
    tier: Tiers = None,
    runs: Annotated[int, typer.Option(min=1, help="Simulated trials of each policy.")] = 200,
    as_json: Json = False,
) -> None:
    """Show how often the reference and the naive policy succeed, beside what they must."""
    from trialgym.cli.canaries import show_solvability

    raise typer.Exit(show_solvability(scenarios=scenario or (), tiers=tier or (), runs=runs, as_json=as_json))


@tasks_app.callback(invoke_without_command=True)
@reported
def tasks(context: typer.Context, as_json: Json = False, target: GraderTarget = None) -> None:
    """List the review tasks, or show one."""
    if context.invoked_subcommand is None:
        from trialgym.cli.listing import list_tasks

        list_tasks(target, as_json=as_json)


@tasks_app.command(epilog=HELP)
@reported
def show(
    name: Annotated[str, typer.Argument(help="The task's name, such as ae_classification.")],
    as_json: Json = False,
    target: GraderTarget = None,
) -> None:
    """Show a task as an agent sees it."""
    from trialgym.cli.listing import show_task

    show_task(name, target, as_json=as_json)
