"""The settings that both servers share: one frozen object each, from flags and environment, validated once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

from trialgym.rpc.logs import Format, Level

_UNIX = "unix:"

BAD_USAGE = 2
"""The exit status of a command whose flags or environment are wrong; 1 stands for a server that could not start."""

Seconds = Annotated[float, Field(ge=0, le=3600)]


def check_address(value: str) -> str:
    """An address as it is. Raises ValueError where it is neither HOST:PORT, with IPv6 in brackets, nor unix:PATH."""
    if value.startswith(_UNIX) and len(value) > len(_UNIX):
        return value
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    named = host and not set(host) & set("/[]: ")
    if not (named or bracketed) or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"must look like HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051, not {value!r}")
    return value


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a HOST:PORT or unix:PATH. A name counts as remote, but for localhost itself."""
    if address.startswith(_UNIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
    max_connection_age_s: float = Field(default=300, ge=1, le=86_400, description="seconds after which a connection is renewed")
    drain_delay_s: Seconds = Field(default=5, description="seconds of serving on after SIGTERM, while clients turn away")
    drain_grace_s: Seconds = Field(default=30, description="seconds that running calls get to finish")
    log_format: Format = Field(default="auto", description="json, console, or auto: console on a terminal")
    log_level: Level = Field(default="info", description="the least level that is logged")
    log_sample: int = Field(default=100, ge=1, description="of successful step and grade calls, log one in so many")

    @field_validator("listen")
    @classmethod
    def _has_port(cls, value: str) -> str:
        return check_address(value)

    @model_validator(mode="after")
    def _loopback_unless_allowed(self) -> ServerSettings:
        if not self.allow_insecure_remote and not is_loopback(self.listen):
            raise ValueError(
                f"--listen {self.listen} is not a loopback address; listening there without TLS needs --allow-insecure-remote"
            )
        return self


S = TypeVar("S", bound=ServerSettings)


def load(cls: type[S], argv: Sequence[str] | None = None) -> S:
    """The settings from flags, where `argv` is None the process's own, and environment.

    Where something is wrong it says on standard error what, by the flag's and the variable's name, and exits with BAD_USAGE.
    """
    try:
        return CliApp.run(cls, cli_args=None if argv is None else list(argv))
    except ValidationError as error:
        problems = [_problem(cls, list(each["loc"]), each["msg"], each["input"]) for each in error.errors()]
    except SettingsError as error:
        problems = [str(error)]
    program = cls.model_config.get("cli_prog_name", "")
    for problem in problems:
        sys.stderr.write(f"{program}: error: {problem}\n")
    sys.exit(BAD_USAGE)


def _problem(cls: type[ServerSettings], loc: list[int | str], message: str, given: object) -> str:
    if not loc:
        return message.removeprefix("Value error, ")
    name = str(loc[0])
    flag, variable = "--" + name.replace("_", "-"), (cls.model_config.get("env_prefix", "") + name).upper()
    what = message.removeprefix("Value error, ").removeprefix("Input should be ")
    where = f"{flag} (or {variable})"
    return f"{where}: {what}" if what.startswith("must ") else f"{where}: must be {what}, not {str(given)!r}"
