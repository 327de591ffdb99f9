"""The grader's settings: flags, or environment variables TRIALGYM_GRADER_*."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trialgym.rpc.settings import ServerSettings


class GraderSettings(ServerSettings):
    """Scores submissions. A setting is a flag, or a variable: --max-watches is TRIALGYM_GRADER_MAX_WATCHES."""

    model_config = SettingsConfigDict(env_prefix="TRIALGYM_GRADER_", cli_prog_name="python -m grader_service")

    listen: str = Field(default="127.0.0.1:50052", description="address to listen on, HOST:PORT; port 0 takes a free one")
