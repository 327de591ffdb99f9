"""How an episode looks on a terminal: observations, rewards by term, the return."""

from __future__ import annotations

import json
from collections.abc import Sequence

from google.protobuf import json_format
from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from trialgym import enums
from trialgym.flows.episodes import EpisodeRecord
from trialgym.flows.steps import Step
from trialgym.v1 import action_pb2, environment_pb2, episode_pb2

MAX_PARAMETERS = 160
"""Characters of an action's parameters that are shown."""

_LISTS = ("Legal now", "Blocked")
"""How the lines of an observation begin that say what may be done now; they are for agents."""


def describe_start(episode: episode_pb2.Episode) -> str:
    """What is played, in a line."""
    if episode.HasField("trial"):
        tier = enums.label(environment_pb2.Tier, episode.trial.tier)
        return f"trial of {episode.trial.scenario}, tier {tier}, seed {episode.seed}"
    rubric = f"{episode.rubric.name} {episode.rubric.version}".strip() or episode.review.rubric
    return f"review of {episode.review.task}, rubric {rubric}, seed {episode.seed}"


def action_name(action: action_pb2.Action) -> str:
    """The action's name as a field of Action."""
    return action.WhichOneof("action") or "nothing"


def describe_action(action: action_pb2.Action) -> str:
    """The action with its parameters, in a line."""
    name = action_name(action)
    if name == "nothing":
        return name
    inner: Message = getattr(action, name)
    if isinstance(inner, action_pb2.SubmitFindings):
        sheet = inner.submission
        claims = sum(finding.WhichOneof("claim") is not None for finding in sheet.findings)
        parts = [f"{_count(len(sheet.findings), 'finding')}, {_count(claims, 'claim')}"]
        parts += ["final"] if inner.final else []
        return f"{name}({', '.join(parts)})"
    fields = json_format.MessageToDict(inner, preserving_proto_field_name=True)
    text = ", ".join(f"{key}={_compact(value)}" for key, value in fields.items())
    return f"{name}({text if len(text) <= MAX_PARAMETERS else text[: MAX_PARAMETERS - 1] + '…'})"


def _compact(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def signed(value: float) -> str:
    """A reward with its sign."""
    return f"{value:+.4g}" if value else "0"


def _unless_zero(value: float) -> str:
    return signed(value) if value else ""


class EpisodeView:
    """Prints an episode as it is played. `verbose`: the whole observation after each step, and not only what is new in it."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._seen: set[str] = set()

    def start(self, episode: EpisodeRecord, who: str) -> None:
        """Prints what is played, by whom, and what is seen at first."""
        self._console.print(f"[bold]{escape(describe_start(episode.message))}[/]", soft_wrap=True)
        self._console.print(f"{episode.name}, played by {escape(who)}", style="dim", soft_wrap=True)
        self._console.rule("observation at the start", align="left")
        text = episode.observation.text.strip() or episode.observation.feedback
        self._seen = set(text.splitlines())
        self._console.print(Markdown(text) if self._console.is_terminal else escape(text), soft_wrap=True)

    def step(self, action: action_pb2.Action, step: Step) -> None:
        """Prints one step: what was done, what became of it, what it earned by term, what is seen now."""
        transition = step.info["transition"]
        self._console.rule(f"[bold]step {transition.step}[/]", align="left")
        self._console.print(escape(describe_action(action)), style="bold", soft_wrap=True)
        lacks = f": lacks {', '.join(step.info['missing'])}" if step.info["missing"] else ""
        outcome = step.info["outcome"]
        color = {"executed": "green", "blocked": "yellow", "malformed": "red"}.get(outcome, "white")
        self._console.print(
            f"[{color}]{outcome}[/]{lacks}  reward [bold]{signed(step.reward)}[/]  {_terms(step.info['terms'])}", soft_wrap=True
        )
        text = step.observation.text.strip() or step.observation.feedback
        shown = text if self._verbose else self._news(text)
        if shown:
            self._console.print(Panel(escape(shown), title="observation", title_align="left", border_style="dim"))

    def _news(self, text: str) -> str:
        """The lines that were not there before, without the long lists of what may be done."""
        lines = text.splitlines()
        new = [line for line in lines if line.strip() and line not in self._seen and not line.startswith(_LISTS)]
        self._seen = set(lines)
        return "\n".join(new)

    def end(self, episode: EpisodeRecord, actions: Sequence[action_pb2.Action], steps: Sequence[Step]) -> None:
        """Prints the rewards of the whole episode by term, and the return."""
        kinds = sorted({kind for step in steps for kind in step.info["terms"]})
        table = Table(
            title="Rewards", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True
        )
        table.add_column("step", justify="right", no_wrap=True, min_width=4)
        table.add_column("action", overflow="ellipsis")  # the one that gives way on a narrow terminal
        for heading in (*kinds, "reward"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        for action, step in zip(actions, steps, strict=True):
            terms = [_unless_zero(step.info["terms"].get(kind, 0.0)) for kind in kinds]
            outcome = step.info["outcome"]
            name = action_name(action) if outcome == "executed" else f"{action_name(action)} ({outcome})"
            table.add_row(str(step.info["transition"].step), name, *terms, signed(step.reward))
        totals = [signed(sum(step.info["terms"].get(kind, 0.0) for step in steps)) for kind in kinds]
        table.add_section()
        table.add_row("", "return", *totals, f"[bold]{signed(episode.total_reward)}[/]")
        self._console.print(table)
        state = enums.label(episode_pb2.EpisodeState, episode.state)
        self._console.print(f"Return [bold]{episode.total_reward:.6g}[/] after {_count(episode.steps, 'step')}: {state}.")


def _terms(terms: dict[str, float]) -> str:
    return "  ".join(f"{kind} {signed(value)}" for kind, value in sorted(terms.items()))
