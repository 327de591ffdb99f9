"""The service's handlers as tests call them: with messages in and messages out."""

from __future__ import annotations

from typing import Any

from grader_service.servicer import GraderServicer
from trialgym.v1 import grader_service_pb2


class Handlers(GraderServicer):
    """The handlers, with the answers that they give as bytes read into the contract's messages."""

    async def Grade(  # type: ignore[override]  # noqa: N802  the contract's name
        self, request: grader_service_pb2.GradeRequest, context: Any
    ) -> grader_service_pb2.GradeResponse:
        return grader_service_pb2.GradeResponse.FromString(await super().Grade(request, context))

    async def BatchGrade(  # type: ignore[override]  # noqa: N802
        self, request: grader_service_pb2.BatchGradeRequest, context: Any
    ) -> grader_service_pb2.BatchGradeResponse:
        return grader_service_pb2.BatchGradeResponse.FromString(await super().BatchGrade(request, context))
