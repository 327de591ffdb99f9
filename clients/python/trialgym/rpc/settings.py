"""The settings that both servers share: one frozen object each, from flags and environment, validated once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from trialgym.rpc.logs import Format, Level

_LOOPBACK = ("127.", "localhost", "[::1]", "unix:")

Seconds = Annotated[float, Field(ge=0, le=3600)]


class ServerSettings(BaseSettings):
    """Where and how a server listens, what it logs and how it stops."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True
    )

    listen: str = Field(description="address to listen on, HOST:PORT; port 0 takes a free one")
    allow_insecure_remote: bool = Field(default=False, description="listen without TLS on an address that other machines reach")
    reflection: bool = Field(default=False, description="offer gRPC server reflection, for development")
    max_concurrent_rpcs: int = Field(default=512, ge=1, le=100_000, description="calls served at a time; more are refused")
    max_watches: int = Field(default=64, ge=1, le=100_000, description="watches served at a time")
    max_streams: int = Field(default=1024, ge=1, le=100_000, description="step streams served at a time")
    max_connection_age_s: float = Field(default=300, gt=0, description="seconds after which a connection is renewed")
    drain_delay_s: Seconds = Field(default=5, description="seconds of serving on after SIGTERM, while clients turn away")
    drain_grace_s: Seconds = Field(default=30, description="seconds that running calls get to finish")
    log_format: Format = Field(default="auto", description="json, console, or auto: console on a terminal")
    log_level: Level = Field(default="info", description="the least level that is logged")
    log_sample: int = Field(default=100, ge=1, description="of successful step and grade calls, log one in so many")

    @field_validator("listen")
    @classmethod
    def _has_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not value.startswith("unix:") and (not host or not port.isdigit() or int(port) > 65535):
            raise ValueError(f"must look like HOST:PORT, such as 127.0.0.1:50051, not {value!r}")
        return value

    @model_validator(mode="after")
    def _loopback_unless_allowed(self) -> ServerSettings:
        if not self.allow_insecure_remote and not self.listen.startswith(_LOOPBACK):
            raise ValueError(
                f"listen={self.listen!r} is not a loopback address; listening there without TLS needs allow_insecure_remote"
            )
        return self
