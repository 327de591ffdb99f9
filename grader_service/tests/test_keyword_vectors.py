"""The keyword rubric gives the recorded points and scores, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader_service.domain.coerce import submission_from_mappings
from grader_service.tests.sheets import registry

VECTORS = Path(__file__).parent / "data" / "keyword_vectors.jsonl"


def vectors() -> Iterator[dict[str, Any]]:
    with VECTORS.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def test_all_recorded_submissions_score_as_recorded() -> None:
    """2,100 submissions, 700 a task: equal points, equal scores, and components that sum to the points."""
    tasks = registry()
    counts: dict[str, int] = {}
    for number, vector in enumerate(vectors()):
        name = f"tasks/{vector['task']}"
        sheet = submission_from_mappings(vector["findings"], vector["rationale"])
        score = tasks.get(name).graders["keyword"](sheet)
        assert score.points == vector["points"], number
        assert score.value == vector["score"], number
        assert sum(part.points for part in score.components) == score.points, number
        assert len({part.id for part in score.components}) == len(score.components)
        assert all(part.points <= part.max_points for part in score.components)
        counts[name] = counts.get(name, 0) + 1
    assert set(counts.values()) == {700}
