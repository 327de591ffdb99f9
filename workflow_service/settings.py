"""The workflow's settings: flags, or environment variables TRIALGYM_WORKFLOW_*."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from trialgym.rpc.settings import ServerSettings, check_address
from workflow_service.storage.redis_address import RedisAddress, parse_address

_SQLITE = "sqlite:"
_REDIS = "redis"

MAX_WORKERS = 64
"""Episodes are dealt out by 256 pairs of digits, see workers.placing: each worker then has four at least."""


class WorkflowSettings(ServerSettings):
    """Holds episodes and steps them. A setting is a flag, or a variable: --max-watches is TRIALGYM_WORKFLOW_MAX_WATCHES."""

    model_config = SettingsConfigDict(env_prefix="TRIALGYM_WORKFLOW_", cli_prog_name="python -m workflow_service")

    listen: str = Field(default="127.0.0.1:50051", description="address to listen on, HOST:PORT; port 0 takes a free one")
    grader: str = Field(default="127.0.0.1:50052", description="the grader's address, HOST:PORT or dns:///NAME:PORT")
    store: str = Field(
        default="sqlite:trialgym.sqlite3",
        description="memory, sqlite:PATH, or redis://HOST:PORT/DB (rediss: with TLS, redis+cluster: for a cluster)",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=MAX_WORKERS,
        description="processes on this machine that share the port; with sqlite a store is bound to its number of them",
    )
    sqlite_synchronous: Literal["FULL", "NORMAL"] = Field(
        default="FULL", description="FULL survives a loss of power, NORMAL the loss of the process only"
    )
    redis_namespace: str = Field(
        default="trialgym", pattern=r"^[A-Za-z0-9_.:-]{1,64}$", description="what all keys in Redis begin with"
    )
    redis_username: str = Field(default="", description="the user at Redis, where it has users")
    redis_password: SecretStr = Field(default=SecretStr(""), description="the password at Redis; best set by its variable")
    redis_ca_file: str = Field(default="", description="PEM of the authorities to trust for rediss:; the machine's without it")
    redis_cert_file: str = Field(default="", description="PEM of the certificate to show to Redis")
    redis_key_file: str = Field(default="", description="PEM of that certificate's key")
    redis_timeout_s: float = Field(default=2, ge=0.1, le=30, description="seconds that an exchange with Redis may take")
    redis_buckets: int = Field(
        default=0, ge=0, le=1024, description="parts of a new store that a cluster is spread by; 0 is 16 there and 1 on one server"
    )
    cache_episodes: int = Field(default=20_000, ge=1, description="episodes kept in memory; others are read when used")
    max_active_episodes: int = Field(default=100_000, ge=1, description="active episodes at a time; more are refused")
    default_ttl_s: float = Field(default=900, ge=1, le=86_400, description="seconds of a lease that does not say how long")
    retention_s: float = Field(default=86_400, ge=1, description="seconds that an ended episode stays readable")
    sweep_interval_s: float = Field(default=5, gt=0, le=3600, description="seconds between sweeps of expired episodes")

    @field_validator("grader")
    @classmethod
    def _can_be_called(cls, value: str) -> str:
        check_address(value.removeprefix("dns:///"))
        return value

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        if value.startswith(_REDIS):
            parse_address(value)
        elif value != "memory" and not (value.startswith(_SQLITE) and len(value) > len(_SQLITE)):
            raise ValueError(f"must be memory, sqlite:PATH or redis://HOST:PORT/DB, not {value!r}")
        return value

    @model_validator(mode="after")
    def _workers_can_share(self) -> WorkflowSettings:
        if self.workers > 1 and self.store == "memory":
            raise ValueError(
                f"--workers {self.workers} needs a store that processes can share; episodes in memory are one process's: use "
                "--store sqlite:PATH or redis://HOST:PORT/DB"
            )
        if self.workers > 1 and self.listen.startswith("unix:"):
            raise ValueError(f"--workers {self.workers} needs --listen HOST:PORT; processes cannot share a unix socket")
        return self

    @property
    def sqlite_path(self) -> Path | None:
        """The file of the SQLite store, None for another store."""
        return Path(self.store.removeprefix(_SQLITE)) if self.store.startswith(_SQLITE) else None

    @property
    def redis_address(self) -> RedisAddress | None:
        """Where the Redis store is, None for another store."""
        return parse_address(self.store) if self.store.startswith(_REDIS) else None
