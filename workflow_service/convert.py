"""Messages to domain values and back: the only file of this service that sees both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from trialgym.rpc import mirror, names, paging
from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import InvalidField
from trialgym.rpc.submissions import ReadSubmission, check_enum, check_submission, check_text
from trialgym.rpc.value_digest import value_digest
from trialgym.v1 import (
    action_pb2,
    curriculum_pb2,
    environment_pb2,
    episode_pb2,
    grader_service_pb2,
    observation_pb2,
    score_pb2,
    task_pb2,
    workflow_service_pb2,
)
from workflow_service.answers import AnswerMemo
from workflow_service.curricula import etag_of
from workflow_service.domain.curriculum import Curriculum
from workflow_service.domain.environment import (
    Grade,
    GradeCall,
    Malformed,
    Observation,
    Submission,
    SubmitFindings,
    TaskFamily,
    TaskRef,
)
from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Event, Head
from workflow_service.domain.trial import actions as trial_actions
from workflow_service.domain.trial import specification
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.scenarios import catalogue
from workflow_service.domain.trial.state import RULES_VERSION
from workflow_service.grader_port import PublicTask
from workflow_service.stepping import StepCommand
from workflow_service.storage.base import Cursor, Filter, Stored

MAX_RAW_TEXT_BYTES = 4 * 1024
MAX_LABELS = 16
MAX_LABEL_CHARACTERS = 63
MIN_TTL_S, MAX_TTL_S = 1.0, 86_400.0

_TRIAL_ACTIONS: dict[str, Any] = {
    kind.name.lower(): cls for cls, kind in trial_actions.ACTION_TYPES.items() if cls not in (SubmitFindings, Malformed)
}
"""The classes of the trial's actions by their field in Action."""

_VIEWS = observation_pb2.ObservationView
_SET_VIEW = observation_pb2.ObservationView.DESCRIPTOR


# Actions


def step_command(request: workflow_service_pb2.StepEpisodeRequest) -> StepCommand:
    """The command in a request. Raises InvalidField."""
    episode_id = names.parse_episode(request.name)
    request_id = names.check_request_id(request.request_id)
    expected = request.expected_step if request.HasField("expected_step") else None
    if not request_id and expected is None:
        raise InvalidField(
            "request_id", "is required, or expected_step in its place, so that a repeated call is never a second step"
        )
    encoded = request.action.SerializeToString(deterministic=True)
    return StepCommand(episode_id, request_id, expected, _known.get(encoded) or _read_action(request.action, encoded), encoded)


_known: dict[bytes, Any] = {}
"""Actions by their bytes. Agents say the same few things over and over, and an action is immutable."""
_KNOWN, _KNOWN_BYTES = 4_096, 256
"""So many are remembered, of so many bytes at most; a sheet or a text is longer, and said once."""


def _read_action(message: action_pb2.Action, encoded: bytes) -> Any:
    action = _action(message, "action")
    if len(encoded) <= _KNOWN_BYTES:
        if len(_known) >= _KNOWN:
            _known.clear()
        _known[encoded] = action
    return action


def _said(encoded: bytes) -> str:
    """A digest of what an action says."""
    return digest(action_pb2.Action.FromString(encoded))


def _action(message: action_pb2.Action, field: str) -> Any:
    kind = message.WhichOneof("action")
    match kind:
        case "submit_findings":
            submit = message.submit_findings
            check_enum(submit.family, task_pb2.TaskFamily.DESCRIPTOR, f"{field}.submit_findings.family")
            return _submit_findings(submit, check_submission(submit.submission, f"{field}.submit_findings.submission"))
        case "malformed":
            check_text(message.malformed.raw_text, f"{field}.malformed.raw_text", MAX_RAW_TEXT_BYTES)
            return Malformed(message.malformed.raw_text)
        case None:
            raise InvalidField(field, "nothing is set; set one action, or malformed for an answer that could not be read")
        case _:
            return _trial_action(kind, getattr(message, kind), f"{field}.{kind}")


def _trial_action(kind: str, message: Message, field: str) -> trial_actions.TrialAction:
    mirror.check_values(message, field)
    action: trial_actions.TrialAction = mirror.from_message(message, _TRIAL_ACTIONS[kind])
    try:
        trial_actions.check(action)
    except trial_actions.InvalidAction as error:
        raise InvalidField(f"{field}.{error.field}", error.problem) from error
    return action


def _submit_findings(submit: action_pb2.SubmitFindings, read: ReadSubmission) -> SubmitFindings:
    content = submit.submission.SerializeToString(deterministic=True)
    family = TaskFamily(submit.family) if submit.family else None
    return SubmitFindings(Submission(value_digest(read), content), submit.final, family)


# What the log keeps


class ProtoCodec:
    """Keeps actions and answers as messages of the contract; see ports.Codec."""

    memo = AnswerMemo
    """See ports.Codec."""

    def same_action(self, logged: bytes, sent: bytes) -> bool:
        """See ports.Codec. Equal messages may have been written as different bytes, by another version of protobuf for one."""
        return logged == sent or _said(logged) == _said(sent)

    def decode_action(self, action: bytes) -> Any:
        """See ports.Codec."""
        return _action(action_pb2.Action.FromString(action), "action")

    def decode_grade(self, answer: bytes) -> Grade | None:
        """See ports.Codec."""
        transition = episode_pb2.Transition.FromString(answer)
        return grade(transition.score) if transition.HasField("score") else None

    def decode_total_reward(self, answer: bytes) -> float:
        """See ports.Codec."""
        return episode_pb2.Transition.FromString(answer).total_reward


def transition(episode_id: str, entry: Entry) -> episode_pb2.Transition:
    """A transition of a trajectory, with its action."""
    message = stored_transition(episode_id, entry.step, entry.answer)
    message.action.MergeFromString(entry.action)
    return message


def stored_transition(episode_id: str, step: int, answer: bytes) -> episode_pb2.Transition:
    """A transition as it is answered, from its stored form."""
    message = episode_pb2.Transition.FromString(answer)
    message.name = names.transition(episode_id, step)
    return message


# Observations and rewards


def check_view(view: int, field: str, *, batch: bool = False) -> None:
    """Raises InvalidField for an unknown view, and for FULL in a batch."""
    check_enum(view, _SET_VIEW, field)
    if batch and view == _VIEWS.OBSERVATION_VIEW_FULL:
        raise InvalidField(field, "FULL is not offered in batches; use TEXT here, or step the episode alone")


def observation(seen: Observation) -> observation_pb2.Observation:
    """The structured part of an observation."""
    return observation_pb2.Observation(
        step=seen.step,
        steps_left=seen.steps_left,
        feedback=seen.feedback,
        hint=seen.hint,
        legal_actions=[action.value for action in seen.legal_actions],  # type: ignore[misc]
        blocked_actions=[mirror.to_message(blocked, observation_pb2.BlockedAction) for blocked in seen.blocked_actions],
        review_packets=[mirror.to_message(packet, observation_pb2.ReviewPacket) for packet in seen.review_packets],
        trial=None if seen.trial is None else mirror.to_message(seen.trial, observation_pb2.TrialObservation),
    )


def fill_view(message: observation_pb2.Observation, text: str, tasks: Iterable[PublicTask]) -> None:
    """Adds the text, and the materials of a FULL view with their own texts."""
    parts = [text]
    for task in tasks:
        message.materials.append(task_pb2.Task.FromString(task.content))
        parts.append(task.text)
    message.text = "\n\n".join(parts)


# The grader


def public_task(message: task_pb2.Task) -> PublicTask:
    """The task as the workflow keeps it."""
    kept = task_pb2.Task()
    kept.CopyFrom(message)
    kept.text = ""  # kept beside it, so that it is not sent twice
    return PublicTask(
        name=message.name,
        family=TaskFamily(message.family),
        content_digest=message.content_digest,
        max_steps=message.max_steps,
        rubrics=tuple((rubric.name, rubric.version) for rubric in message.rubrics),
        text=message.text,
        content=kept.SerializeToString(),
    )


def task_request(name: str) -> grader_service_pb2.GetTaskRequest:
    """Asks the grader for a task."""
    return grader_service_pb2.GetTaskRequest(name=name)


def batch_grade_request(calls: Iterable[GradeCall]) -> grader_service_pb2.BatchGradeRequest:
    """Grading calls as the grader takes them together."""
    batch = grader_service_pb2.BatchGradeRequest()
    for call in calls:
        _fill_grade_request(batch.requests.add(), call)
    return batch


def grade_request(call: GradeCall) -> grader_service_pb2.GradeRequest:
    """A grading call as the grader takes it."""
    request = grader_service_pb2.GradeRequest()
    _fill_grade_request(request, call)
    return request


def _fill_grade_request(request: grader_service_pb2.GradeRequest, call: GradeCall) -> None:
    request.task, request.rubric, request.view = call.task.name, call.task.rubric, score_pb2.SCORE_VIEW_BASIC
    request.submission.SetInParent()  # an empty sheet is a sheet
    request.submission.MergeFromString(call.submission.content)


def grade(score: score_pb2.Score) -> Grade:
    """The grade in a score."""
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


# Episodes


@dataclass(frozen=True, slots=True)
class ReviewAsked:
    """A review episode that a client asks for: a task's name, and a rubric's or none."""

    task: str
    rubric: str


@dataclass(frozen=True, slots=True)
class TrialAsked:
    """A trial episode that a client asks for: a scenario's id and a tier, or a curriculum that chooses what is left out."""

    scenario: str
    tier: Tier | None
    curriculum_id: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """What a client asks of a new episode, checked. `ttl_ms` is None where it was left to the server."""

    environment: ReviewAsked | TrialAsked
    seed: int
    labels: tuple[tuple[str, str], ...]
    ttl_ms: int | None
    digest: str


def episode_request(message: episode_pb2.Episode, *extra: object) -> EpisodeRequest:
    """The request in the episode that a client sends; `extra` is what else makes two requests differ. Raises InvalidField."""
    environment = message.WhichOneof("environment")
    asked: ReviewAsked | TrialAsked
    match environment:
        case "review":
            names.parse_task(message.review.task, "episode.review.task")
            asked = ReviewAsked(message.review.task, message.review.rubric)
        case "trial":
            asked = _trial_asked(message.trial)
        case _:
            raise InvalidField("episode.environment", "is required; set review with a task, or trial with a scenario and a tier")
    ttl = message.ttl if message.HasField("ttl") else None
    return EpisodeRequest(
        environment=asked,
        seed=message.seed,
        labels=labels(message.labels, "episode.labels"),
        ttl_ms=None if ttl is None else ttl_ms(ttl, "episode.ttl"),
        digest=digest([asked, message.seed, dict(message.labels), ttl, *extra]),
    )


def _trial_asked(message: environment_pb2.TrialEnvironment) -> TrialAsked:
    difficulty = message.WhichOneof("difficulty")
    by_curriculum = difficulty == "curriculum"
    scenario = ""
    if message.scenario or not by_curriculum:
        scenario = names.parse_scenario(message.scenario, "episode.trial.scenario")
    if by_curriculum:
        return TrialAsked(scenario, None, names.parse_curriculum(message.curriculum, "episode.trial.curriculum"))
    check_enum(message.tier, environment_pb2.Tier.DESCRIPTOR, "episode.trial.tier")
    if not message.tier:
        raise InvalidField("episode.trial.tier", "is required, or curriculum; choose TIER_WARMUP to TIER_EXPERT")
    return TrialAsked(scenario, Tier(message.tier))


def labels(given: Mapping[str, str], field: str) -> tuple[tuple[str, str], ...]:
    """Labels by key. Raises InvalidField where there are too many or they are too long."""
    if len(given) > MAX_LABELS:
        raise InvalidField(field, f"{len(given)} labels, at most {MAX_LABELS} are allowed")
    for key, value in given.items():
        if not key or len(key) > MAX_LABEL_CHARACTERS or len(value) > MAX_LABEL_CHARACTERS:
            raise InvalidField(
                field,
                f"label {key[:80]!r}: keys have 1 to {MAX_LABEL_CHARACTERS} characters, values at most {MAX_LABEL_CHARACTERS}",
            )
    return tuple(sorted(given.items()))


def ttl_ms(ttl: Duration, field: str) -> int:
    """A lease's length in milliseconds. Raises InvalidField beyond its bounds, and for what is no duration."""
    seconds = ttl.seconds + ttl.nanos / 1e9
    if abs(ttl.nanos) >= 1_000_000_000 or ttl.seconds * ttl.nanos < 0:
        raise InvalidField(field, f"is no duration: {ttl.seconds} s and {ttl.nanos} ns; both need one sign, and ns less than 1e9")
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise InvalidField(field, f"must be {MIN_TTL_S:g} second to {MAX_TTL_S:g} seconds, not {seconds:g}")
    return round(seconds * 1000)


def episode(start: EpisodeStart, head: Head) -> episode_pb2.Episode:
    """An episode without its observation."""
    message = episode_pb2.Episode(
        name=names.episode(start.episode_id),
        seed=start.seed,
        step=head.step,
        state=head.state.value,  # type: ignore[arg-type]
        total_reward=head.total_reward,
        state_hash=head.state_hash,
        group=names.group(start.group_id),
        group_index=start.group_index,
        fork_source=names.transition(start.fork_source, start.fork_step) if start.fork_source else "",
        labels=dict(start.labels),
        expire_time=timestamp(head.expire_ms),
        create_time=timestamp(start.create_ms),
        # The clock may have gone back since the creation; leases go by it all the same, but nobody is shown a negative age.
        update_time=timestamp(max(head.update_ms, start.create_ms)),
        rules_version=start.rules_version,
    )
    if start.review is not None:
        message.review.task, message.review.rubric = start.review.name, start.review.rubric
        message.rubric.name, message.rubric.version = start.review.rubric, start.review.rubric_version
    if start.trial is not None:
        message.trial.scenario, message.trial.tier = names.scenario(start.trial.scenario), start.trial.tier.value  # type: ignore[assignment]
        message.trial.review_tasks.extend(task.name for task in start.trial.review_tasks)
        for task in start.trial.review_tasks:  # one rubric scores them all
            message.rubric.name, message.rubric.version = task.rubric, task.rubric_version
    return message


# Curricula


def curriculum(kept: Curriculum) -> curriculum_pb2.Curriculum:
    """A curriculum with how its run has fared."""
    records = [
        curriculum_pb2.CurriculumRecord(
            tier=tally.tier.value,  # type: ignore[arg-type]
            scenario=names.scenario(tally.scenario),
            episodes=tally.episodes,
            successes=tally.successes,
            recent=tally.recent,
        )
        for tally in kept.tallies
    ]
    return curriculum_pb2.Curriculum(
        name=names.curriculum(kept.curriculum_id),
        tier=kept.tier.value,  # type: ignore[arg-type]
        records=records,
        scenarios=[names.scenario(scenario) for scenario in kept.scenarios],
        etag=etag_of(kept),
        update_time=timestamp(kept.update_ms),
    )


def curriculum_request(message: curriculum_pb2.Curriculum) -> tuple[str, Tier | None, tuple[str, ...]]:
    """The id, tier and scenarios that a client sets. Raises InvalidField."""
    curriculum_id = names.parse_curriculum(message.name, "curriculum.name")
    check_enum(message.tier, environment_pb2.Tier.DESCRIPTOR, "curriculum.tier")
    scenarios_ = tuple(names.parse_scenario(s, f"curriculum.scenarios[{i}]") for i, s in enumerate(message.scenarios))
    if len(set(scenarios_)) != len(scenarios_):
        raise InvalidField("curriculum.scenarios", "names a scenario twice; name each once")
    return curriculum_id, Tier(message.tier) if message.tier else None, scenarios_


# What there is to play


def description(*, limits: environment_pb2.Limits, rubrics: Iterable[tuple[str, str]]) -> environment_pb2.EnvironmentDescription:
    """The actions, phases, tiers, reward terms and limits."""
    return environment_pb2.EnvironmentDescription(
        actions=[mirror.to_message(spec, environment_pb2.ActionSpec) for spec in specification.action_specs()],
        phases=[mirror.to_message(spec, environment_pb2.PhaseSpec) for spec in specification.phase_specs()],
        tiers=[mirror.to_message(spec, environment_pb2.TierSpec) for spec in specification.tier_specs()],
        reward_terms=[mirror.to_message(spec, environment_pb2.RewardTermSpec) for spec in specification.reward_term_specs()],
        limits=limits,
        rules_version=RULES_VERSION,
        rubrics=[score_pb2.Rubric(name=name, version=version) for name, version in rubrics],
        task_families=[family.value for family in TaskFamily],  # type: ignore[misc]
    )


def scenarios() -> list[environment_pb2.Scenario]:
    """The public cards of the scenarios, by name."""
    return sorted((mirror.to_message(card, environment_pb2.Scenario) for card in catalogue()), key=lambda card: card.name)


def timestamp(ms: int) -> Timestamp:
    """An instant."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


# Lists and watches


def episode_filter(request: workflow_service_pb2.ListEpisodesRequest) -> Filter:
    """Which episodes to list. Raises InvalidField."""
    check_enum(request.state, episode_pb2.EpisodeState.DESCRIPTOR, "state")
    return Filter(
        EpisodeState(request.state) if request.state else None,
        names.parse_group(request.group) if request.group else "",
        labels(request.labels, "labels"),
    )


def cursor_text(last: Stored) -> str:
    """Where a page of episodes ended, as a text."""
    return f"{last.start.create_ms}:{last.start.episode_id}"


def cursor(text: str) -> Cursor:
    """Where a page of episodes ended. Raises InvalidPageToken."""
    create_ms, _, episode_id = text.partition(":")
    return Cursor(paging.number(create_ms), episode_id)


def tasks_of(start: EpisodeStart) -> tuple[TaskRef, ...]:
    """The review tasks whose materials an episode may show."""
    if start.trial is not None:
        return start.trial.review_tasks
    return () if start.review is None else (start.review,)


def stored(start: EpisodeStart, head: Head) -> Stored:
    """An episode without its log."""
    return Stored(start, head)


def event_filter(request: workflow_service_pb2.WatchEpisodesRequest) -> Callable[[Event], bool]:
    """Whether a watch wants an event. Raises InvalidField."""
    ids = frozenset(names.parse_episode(name, f"names[{index}]") for index, name in enumerate(request.names))
    group_id = names.parse_group(request.group) if request.group else ""
    with_labels = set(labels(request.labels, "labels"))

    def wanted(happened: Event) -> bool:
        return (
            (not ids or happened.episode_id in ids)
            and (not group_id or happened.group_id == group_id)
            and with_labels.issubset(happened.labels)
        )

    return wanted


def event(happened: Event) -> workflow_service_pb2.EpisodeEvent:
    """An event of a watch."""
    return workflow_service_pb2.EpisodeEvent(
        kind=happened.kind.value,  # type: ignore[arg-type]
        name=names.episode(happened.episode_id),
        step=happened.step,
        state=happened.state.value,  # type: ignore[arg-type]
        event_time=timestamp(happened.time_ms),
    )
