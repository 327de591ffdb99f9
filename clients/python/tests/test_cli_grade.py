"""`trialgym grade`: the published scores exactly, and a bad line never spoils the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trialgym.cli.app import app
from trialgym.cli.lines import number

ROOT = Path(__file__).resolve().parents[3]
VECTORS = ROOT / "grader_service" / "tests" / "data" / "keyword_vectors.jsonl"

PERFECT = {
    "task": "eligibility_screening",
    "findings": [
        {"subject_id": "PT-002", "criterion_id": "IC-1", "evidence": {"age": 78}},
        {"subject_id": "PT-003", "eligibility": {"criterionIds": ["IC-3", "IC-4"], "evidence": [{"field": "egfr", "number": 58}]}},
    ],
    "rationale": "",
}


def grade(*lines: Any, rubric: str = "", path: Path | None = None) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the lines printed for these lines, given as text or as JSON values."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    arguments = ["grade", "--jsonl", str(path) if path else "-", *(["--rubric", rubric] if rubric else [])]
    result = CliRunner().invoke(app, arguments, input=text.encode("utf-8", "surrogatepass"))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_every_published_vector_scores_exactly_the_same() -> None:
    vectors = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    assert len(vectors) == 2100
    code, answers = grade(path=VECTORS)
    assert code == 0
    assert [(answer["task"], answer["points"], answer["score"]) for answer in answers] == [
        (vector["task"], vector["points"], vector["score"]) for vector in vectors
    ]
    for answer in answers:
        assert answer["rubric"] == "keyword"
        assert sum(part["points"] for part in answer["components"]) == answer["points"]
        assert type(answer["points"]) is type(answer["max_points"]) is int
    assert [answer["line"] for answer in answers] == list(range(1, 2101))


def test_the_other_rubric() -> None:
    code, (answer,) = grade(PERFECT, rubric="structured")
    assert code == 0
    assert (answer["rubric"], answer["max_points"]) == ("structured", 6)
    assert answer["score"] == pytest.approx(answer["points"] / 6)
    verdicts = {part["id"]: part["verdict"] for part in answer["components"]}
    assert verdicts["PT-002/IC-1"] == "correct"
    assert verdicts["PT-005/EC-4"] == "missed"


def test_the_task_may_be_named_with_its_collection() -> None:
    code, answers = grade({"task": "tasks/ae_classification"}, {"task": "ae_classification", "findings": None, "rationale": None})
    assert code == 0
    assert [answer["points"] for answer in answers] == [33, 33]


GOOD = {"task": "eligibility_screening", "findings": [], "rationale": ""}


@pytest.mark.parametrize(
    ("line", "reason", "field", "words"),
    [
        ("{", "INVALID_FIELD", None, "column 2: not JSON: expecting property name"),
        ('{"task": "x"} tail', "INVALID_FIELD", None, "column 15: not JSON: extra data"),
        ("[1]", "INVALID_FIELD", None, "a JSON object is wanted here, not a list"),
        ("nonsense", "INVALID_FIELD", None, "not JSON"),
        ({"findings": []}, "INVALID_FIELD", "task", "is required"),
        ({"task": 3}, "INVALID_FIELD", "task", "is required"),
        ({"task": "no_such_task"}, "NOT_FOUND", None, "tasks/no_such_task"),
        ({"task": "NO WAY"}, "INVALID_FIELD", "task", "is not a name"),
        ({"task": "eligibility_screening", "rationale": "x" * 20_000}, "INVALID_FIELD", "rationale", "at most 16384"),
        ({"task": "eligibility_screening", "findings": [{}] * 65}, "INVALID_FIELD", "findings", "at most 64"),
        (
            {"task": "eligibility_screening", "findings": [{"description": "x" * 1_000_000}]},
            "INVALID_FIELD",
            "findings[0].description",
            "at most 4096",
        ),
        (
            {"task": "eligibility_screening", "findings": [{"subject_id": "a", "criterion_id": "IC-1"}] * 2},
            "INVALID_FIELD",
            "findings[1].claim",
            "claim each key once",
        ),
        ("[" * 100_000, "INVALID_FIELD", None, "nesting without end"),
        ('{"task": ' + "9" * 5000 + "}", "INVALID_FIELD", None, "thousands of digits"),
    ],
)
def test_a_bad_line_says_what_is_wrong_and_the_others_are_graded(line: Any, reason: str, field: str | None, words: str) -> None:
    code, answers = grade(GOOD, line, "", GOOD)
    assert code == 1
    assert [answer["line"] for answer in answers] == [1, 2, 4]
    assert [answer.get("points") for answer in answers] == [20, None, 20]
    error = answers[1]["error"]
    assert (error["reason"], error["field"]) == (reason, field)
    assert error["code"] in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert words in error["message"]
    assert "requests[" not in error["message"]


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\u202egnirts", "line\nbreak\r\n", "ключ", "\U0001f9ea" * 500, "\ufeff"])
def test_hostile_text_is_graded(text: str) -> None:
    code, (answer,) = grade(
        {"task": "eligibility_screening", "findings": [{"subject_id": "PT-001", "description": text}], "rationale": text}
    )
    assert code == 0
    assert answer["points"] == 20


def test_a_line_that_is_not_utf8() -> None:
    result = CliRunner().invoke(app, ["grade", "--jsonl", "-"], input=b'{"task": "\xff"}\n')
    assert result.exit_code == 1
    assert "column 11: not UTF-8 (byte 0xff)" in json.loads(result.stdout)["error"]["message"]


def test_an_unknown_rubric_is_an_error_of_each_line() -> None:
    code, (answer,) = grade(GOOD, rubric="guess")
    assert code == 1
    assert (answer["error"]["reason"], answer["error"]["field"]) == ("INVALID_FIELD", "rubric")


def test_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["grade", "--jsonl", "/no/such/file"])
    assert result.exit_code == 2
    assert result.stderr == "trialgym: cannot read /no/such/file: no such file or directory\n"


def test_no_lines_are_no_error() -> None:
    assert grade() == (0, [])


def test_a_grader_that_is_not_there_ends_the_command() -> None:
    result = CliRunner().invoke(app, ["grade", "--jsonl", "-", "--target", "127.0.0.1:1"], input=json.dumps(GOOD))
    assert result.exit_code == 3
    assert "nothing answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(("value", "shown"), [(3.0, "3"), (0.5, "0.5"), (-8.0, "-8"), (0.0, "0"), (1e300, str(int(1e300)))])
def test_whole_numbers_are_shown_without_a_fraction(value: float, shown: str) -> None:
    assert json.dumps(number(value)) == shown
