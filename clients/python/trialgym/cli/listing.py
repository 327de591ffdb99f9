"""`trialgym tasks`: the canonical review tasks, and one of them as an agent sees it."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from trialgym import enums
from trialgym.cli.lines import message_line
from trialgym.cli.local import session
from trialgym.v1 import task_pb2


def list_tasks(target: str | None, *, as_json: bool) -> None:
    """Prints the tasks as a table, or as a line of JSON each."""
    with session("grader", target) as grader:

        async def collect() -> list[task_pb2.Task]:
            return [task async for task in grader.client.list_tasks()]

        tasks = grader.run(collect())
    if as_json:
        sys.stdout.writelines(message_line(task) + "\n" for task in tasks)
        return
    table = Table(title="Review tasks", title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("difficulty", "steps", "title"):
        table.add_column(heading)
    for task in tasks:
        difficulty = enums.label(task_pb2.Difficulty, task.difficulty)
        table.add_row(task.name, difficulty, str(task.max_steps), task.title)
    Console().print(table)


def show_task(name: str, target: str | None, *, as_json: bool) -> None:
    """Prints a task's text, or the task as one line of JSON."""
    with session("grader", target) as grader:
        task = grader.run(grader.client.get_task(name))
    console = Console()
    if as_json:
        sys.stdout.write(message_line(task) + "\n")
    elif console.is_terminal:
        console.print(Markdown(task.text))
    else:
        sys.stdout.write(task.text)
