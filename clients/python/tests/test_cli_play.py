"""`trialgym play` and `replay`: episodes for people and for machines, saved, replayed and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from typer.testing import CliRunner, Result

import trialgym
from trialgym.cli.app import app
from trialgym.v1 import action_pb2, episode_pb2

TASKS = ["ae_classification", "eligibility_screening", "protocol_amendment_review"]


def run(*arguments: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def transitions(text: str) -> list[episode_pb2.Transition]:
    return [json_format.Parse(line, episode_pb2.Transition()) for line in text.splitlines()]


def lines(*actions: action_pb2.Action) -> str:
    return "".join(json_format.MessageToJson(action, indent=None) + "\n" for action in actions)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("policy", ["expert", "random", "empty", "stuffer"])
def test_json_is_one_transition_of_the_contract_a_line(task: str, policy: str) -> None:
    result = run("play", "--task", task, "--policy", policy, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    steps = transitions(result.stdout)
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.reward.value == sum(term.value for term in step.reward.terms) for step in steps)
    assert all(step.action.WhichOneof("action") == "submit_findings" for step in steps)
    assert all(len(step.state_hash) == 32 for step in steps)
    assert steps[-1].terminated
    assert steps[-1].total_reward == sum(step.reward.value for step in steps)
    if policy == "expert":
        assert steps[-1].total_reward == pytest.approx(0.99, abs=2**-20)


def test_machines_find_zeros_and_falsehoods_written_out() -> None:
    first = json.loads(run("play", "--policy", "empty", "--task", "ae_classification", "--rubric", "structured", "--json").stdout)
    assert first["reward"] == {"value": 0.0, "terms": []}
    assert first["truncated"] is False


def test_people_see_observation_reward_by_term_and_the_return() -> None:
    shown = run("play", "--task", "tasks/ae_classification", "--policy", "expert", "--rubric", "structured").stdout
    assert "review of tasks/ae_classification, rubric structured 1, seed 0" in shown
    assert "AE-004" in shown
    assert "submit_findings(4 findings, 4 claims, final)" in shown
    assert "task_score" in shown
    assert "Return 1 after 1 step: terminated." in shown
    assert "Classification of adverse events" in shown


def test_play_is_reproducible_by_seed() -> None:
    def hashes(seed: str) -> list[str]:
        return [step.state_hash for step in transitions(run("play", "--policy", "random", "--seed", seed, "--json").stdout)]

    assert hashes("3") == hashes("3")
    assert hashes("3") != hashes("4")


def test_actions_from_a_file_with_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    path.write_text("\n" + lines(trialgym.malformed("?")) + "  \n" + lines(trialgym.submit_findings(final=True)))
    result = run("play", "--actions", str(path), "--json")
    assert result.exit_code == 0
    assert [step.outcome for step in transitions(result.stdout)] == [episode_pb2.OUTCOME_MALFORMED, episode_pb2.OUTCOME_EXECUTED]


def test_actions_that_leave_the_episode_active_are_played_as_far_as_they_go() -> None:
    result = run("play", "--actions", "-", text='{"submitFindings": {"submission": {}}}\n')
    assert result.exit_code == 0
    assert "is still active" in result.stdout
    assert "Return 0.2 after 1 step: active." in result.stdout


def test_an_action_after_the_end_is_refused_and_told() -> None:
    result = run("play", "--actions", "-", "--json", text=lines(*[trialgym.submit_findings(final=True)] * 2))
    assert result.exit_code == 1
    assert len(transitions(result.stdout)) == 1
    assert "standard input, line 2: submit_findings(0 findings, 0 claims, final) was not taken" in result.stderr
    assert "[EPISODE_FINISHED]" in result.stderr


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ('{"malformed": {}', "column 17", "not JSON"),
        ("{}", "column 1", "no action is set"),
        ('{"malformed": {}, "dance": {}}', "column 19", "dance: there is no such field"),
        (
            '{"submitFindings": {"submission": {"findings": [{"type": 1}, {"severity": "HUGE"}]}}}',
            "column 63",
            "submitFindings.submission.findings[1].severity: Invalid enum value HUGE",
        ),
        ('{"malformed": {"rawText": 3}}', "column 16", "rawText: expected string"),
        ("[]", "column 1", "a JSON object is wanted here, not a list"),
        ('{ "runDoseEscalation" : {"cohortSize": 3, "doseLevel": -1}}', "column 43", "doseLevel: Value out of range: -1"),
        ('{"setSampleSize": {"nTotal": 1.5}}', "column 20", "setSampleSize.nTotal: Couldn't parse integer: 1.5"),
        ('{"malformed": {}, "reviewScenario": {}}', "column 1", "oneof"),
        ('{"malformed": {"rawText": "\\ud800"}}', "column 16", "Unpaired surrogate"),
    ],
)
def test_a_bad_action_is_told_by_line_and_column(line: str, where: str, words: str) -> None:
    result = run("play", "--actions", "-", text=lines(trialgym.malformed()) + "\n" + line + "\n")
    assert result.exit_code == 2
    assert f"standard input, line 3, {where}" in result.stderr
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_action_of_another_environment_is_refused_with_its_field() -> None:
    result = run("play", "--actions", "-", text='{"reviewScenario": {}}\n')
    assert result.exit_code == 2
    assert "[INVALID_FIELD]" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "nothing"], "tasks/nothing"),
        (["--task", "NO WAY"], "is not a name"),
        (["--rubric", "guess"], "rubric"),
        (["--policy", "genius"], "use one of expert, random, empty, stuffer"),
        (["--tier", "expert"], "--scenario and --tier are for trials"),
        (["--environment", "trial"], "needs --scenario"),
        (["--environment", "trial", "--task", "x", "--scenario", "y"], "are for reviews"),
        (["--actions", "/no/such/file"], "cannot read /no/such/file"),
        (["--save", "/no/such/folder/file"], "cannot write /no/such/folder/file"),
        (["--seed", "-1"], "seed"),
        (["--environment", "dream"], "environment"),
    ],
)
def test_what_cannot_be_played_is_told(arguments: list[str], words: str) -> None:
    result = run("play", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_service_that_is_not_there() -> None:
    for command in (["play"], ["tasks"], ["tasks", "show", "x"], ["replay", "episodes/x"]):
        result = run(*command, "--target", "127.0.0.1:1")
        assert result.exit_code == 3
        assert "nothing answers at 127.0.0.1:1: start both services with `trialgym serve`" in result.stderr


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_trajectory_replays_equal(task: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    run("play", "--task", task, "--policy", "random", "--seed", "5", "--rubric", "structured", "--save", str(path))
    result = run("replay", str(path))
    assert result.exit_code == 0
    assert f"review of tasks/{task}, rubric structured 1, seed 5" in result.stdout
    assert "are equal in rewards, terms and state hashes" in result.stdout


def test_what_json_printed_replays_too(tmp_path: Path) -> None:
    path = tmp_path / "printed.jsonl"
    path.write_text(run("play", "--policy", "random", "--task", "ae_classification", "--json").stdout)
    assert run("replay", str(path)).exit_code == 0
    assert run("replay", str(path), "--seed", "1").exit_code == 1  # the seed is part of the state


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda step: step.update(stateHash="0" * 32), "state hash"),
        (lambda step: step["reward"].update(value=0.25), "reward"),
        (lambda step: step["reward"]["terms"].append({"kind": "REWARD_TERM_KIND_RECOVERY", "value": 0.3}), "terms"),
        (lambda step: step.update(outcome="OUTCOME_BLOCKED"), "outcome"),
        (lambda step: step.update(terminated=True), "end"),
    ],
)
def test_the_first_difference_ends_a_replay(change: Any, what: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    run("play", "--policy", "random", "--save", str(path))
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    change(stored[2])
    path.write_text("\n".join(map(json.dumps, stored)))
    result = run("replay", str(path))
    assert result.exit_code == 1
    assert f"Step 2 differs in its {what}" in result.stdout
    assert "│ 3 " not in result.stdout


def test_a_trajectory_that_goes_on_after_the_end_differs(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    run("play", "--policy", "empty", "--save", str(path))
    last = json.loads(path.read_text().splitlines()[-1])
    last["step"] = 2
    path.write_text(path.read_text() + json.dumps(last))
    result = run("replay", str(path))
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no transition"),
        ("{", "line 1, column 2: not JSON"),
        ('{"step": 1}', "does not hold its action"),
        ('{"step": 2, "action": {"malformed": {}}}', "step 1 is wanted here, not 2"),
        ('{"step": "x"}', "line 1, column 1: no Transition"),
        ('{"step": 1, "action": {"malformed": {}}}', "does not say how its episode starts"),
        ('{"episode": {"seed": -1}}', "line 1, column 1: no Episode"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_told(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    result = run("replay", str(path))
    assert result.exit_code == 2
    assert words in result.stderr


TRIAL_ACTIONS = """
{"reviewScenario": {}}
{"formHypothesis": {"expectedEffect": 0.4, "responderHypothesis": "RESPONDER_POPULATION_ALL_COMERS"}}
{"synthesizeConclusion": {"claims": {"effectEstimate": 0.1, "ciUpper": 0.3, "responderPopulation": 1, "decision": 1}}}
"""


def test_a_trial_is_played_saved_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    trial = ["--environment", "trial", "--scenario", "solid_tumor_chemo", "--tier", "warmup", "--seed", "3"]
    played = run("play", *trial, "--actions", "-", "--save", str(path), text=TRIAL_ACTIONS)
    assert played.exit_code == 0
    assert "trial of scenarios/solid_tumor_chemo, tier warmup, seed 3" in played.stdout
    assert "blocked: lacks primary_analysis_run" in played.stdout
    assert "Return 0.4 after 3 steps: active." in played.stdout
    assert run("replay", str(path)).exit_code == 0

    printed = run("play", *trial, "--actions", "-", "--json", text=TRIAL_ACTIONS)
    assert [transition.outcome for transition in transitions(printed.stdout)] == [1, 1, 2]
    path.write_text(printed.stdout)
    unknown = run("replay", str(path))
    assert unknown.exit_code == 2
    assert "give --scenario, --tier and --seed" in unknown.stderr
    assert run("replay", str(path), *trial[2:]).exit_code == 0


def test_an_episode_by_name_needs_its_service() -> None:
    result = run("replay", "episodes/x")
    assert result.exit_code == 2
    assert "give --target" in result.stderr


def test_tasks_are_listed_and_shown() -> None:
    listed = run("tasks")
    assert listed.exit_code == 0
    assert all(f"tasks/{task}" in listed.stdout for task in TASKS)
    assert [json.loads(line)["name"] for line in run("tasks", "--json").stdout.splitlines()] == [f"tasks/{task}" for task in TASKS]
    shown = run("tasks", "show", "eligibility_screening")
    assert "PT-003" in shown.stdout
    assert json.loads(run("tasks", "show", "tasks/eligibility_screening", "--json").stdout)["text"] == shown.stdout
    unknown = run("tasks", "show", "nothing")
    assert unknown.exit_code == 2
    assert "[NOT_FOUND]" in unknown.stderr


def test_actions_of_every_kind_are_described() -> None:
    from trialgym.cli.views import describe_action

    assert describe_action(action_pb2.Action()) == "nothing"
    assert describe_action(trialgym.malformed("x" * 400)).endswith("…)")
    escalation = action_pb2.RunDoseEscalation(design=action_pb2.ESCALATION_DESIGN_BOIN, dose_level=2, cohort_size=3)
    action = action_pb2.Action(run_dose_escalation=escalation)
    assert describe_action(action) == "run_dose_escalation(design=ESCALATION_DESIGN_BOIN, dose_level=2, cohort_size=3)"


def test_a_fault_of_the_command_line_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("trialgym.cli.listing.show_task", fail)
    monkeypatch.delenv("TRIALGYM_TRACEBACK", raising=False)
    result = CliRunner().invoke(app, ["tasks", "show", "x"])
    assert result.exit_code == 70
    assert "ZeroDivisionError: odd" in result.stderr
    assert "set TRIALGYM_TRACEBACK=1 to see where" in result.stderr
    monkeypatch.setenv("TRIALGYM_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(app, ["tasks", "show", "x"]).exception, ZeroDivisionError)
