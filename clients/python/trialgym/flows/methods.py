"""The unary methods of both services, typed, each with the contract's word on whether it may be repeated."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from trialgym.flows.effects import Method, Service
from trialgym.rpc.channel import SERVICES, is_retryable
from trialgym.v1 import curriculum_pb2 as cur
from trialgym.v1 import environment_pb2 as env
from trialgym.v1 import episode_pb2 as ep
from trialgym.v1 import grader_service_pb2 as gs
from trialgym.v1 import task_pb2
from trialgym.v1 import workflow_service_pb2 as ws

_GRADER, _WORKFLOW = SERVICES

WORKFLOW_SERVICE = _WORKFLOW.full_name
GRADER_SERVICE = _GRADER.full_name


def _method(service: Service, owner: ServiceDescriptor, name: str) -> Method[Any, Any]:
    method = owner.methods_by_name[name]
    return Method(service, f"/{owner.full_name}/{name}", GetMessageClass(method.output_type), is_retryable(method))


def _workflow(name: str) -> Method[Any, Any]:
    return _method("workflow", _WORKFLOW, name)


def _grader(name: str) -> Method[Any, Any]:
    return _method("grader", _GRADER, name)


DESCRIBE: Method[ws.DescribeEnvironmentRequest, env.EnvironmentDescription] = _workflow("DescribeEnvironment")
LIST_SCENARIOS: Method[ws.ListScenariosRequest, ws.ListScenariosResponse] = _workflow("ListScenarios")
CREATE: Method[ws.CreateEpisodeRequest, ep.Episode] = _workflow("CreateEpisode")
CREATE_GROUP: Method[ws.CreateEpisodeGroupRequest, ep.EpisodeGroup] = _workflow("CreateEpisodeGroup")
GET: Method[ws.GetEpisodeRequest, ep.Episode] = _workflow("GetEpisode")
LIST: Method[ws.ListEpisodesRequest, ws.ListEpisodesResponse] = _workflow("ListEpisodes")
STEP: Method[ws.StepEpisodeRequest, ws.StepEpisodeResponse] = _workflow("StepEpisode")
BATCH_STEP: Method[ws.BatchStepEpisodesRequest, ws.BatchStepEpisodesResponse] = _workflow("BatchStepEpisodes")
FORK: Method[ws.ForkEpisodeRequest, ep.Episode] = _workflow("ForkEpisode")
RENEW: Method[ws.RenewEpisodesRequest, ws.RenewEpisodesResponse] = _workflow("RenewEpisodes")
CANCEL: Method[ws.CancelEpisodeRequest, ep.Episode] = _workflow("CancelEpisode")
DELETE: Method[ws.DeleteEpisodeRequest, ws.DeleteEpisodeResponse] = _workflow("DeleteEpisode")
LIST_TRANSITIONS: Method[ws.ListTransitionsRequest, ws.ListTransitionsResponse] = _workflow("ListTransitions")
GET_CURRICULUM: Method[ws.GetCurriculumRequest, cur.Curriculum] = _workflow("GetCurriculum")
UPDATE_CURRICULUM: Method[ws.UpdateCurriculumRequest, cur.Curriculum] = _workflow("UpdateCurriculum")

LIST_TASKS: Method[gs.ListTasksRequest, gs.ListTasksResponse] = _grader("ListTasks")
GET_TASK: Method[gs.GetTaskRequest, task_pb2.Task] = _grader("GetTask")
GRADE: Method[gs.GradeRequest, gs.GradeResponse] = _grader("Grade")
BATCH_GRADE: Method[gs.BatchGradeRequest, gs.BatchGradeResponse] = _grader("BatchGrade")


def health(service: Service) -> Method[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]:
    """The health check of a service: the one method that is not of our contract. A probe may always be repeated."""
    return Method(service, "/grpc.health.v1.Health/Check", health_pb2.HealthCheckResponse, repeatable=True)
