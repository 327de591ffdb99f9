"""Settings: where they come from, what is allowed, and how a mistake is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grader_service.settings import GraderSettings
from tests.support.processes import environment
from trialgym.rpc.settings import ServerSettings, check_address, is_loopback, load
from workflow_service.settings import WorkflowSettings

WF, GR = "TRIALGYM_WORKFLOW_", "TRIALGYM_GRADER_"


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls, prefix in ((WorkflowSettings, WF), (GraderSettings, GR)):
        for name in cls.model_fields:
            monkeypatch.delenv(prefix + name.upper(), raising=False)


ADDRESSES_OK = [
    "127.0.0.1:0",
    "localhost:65535",
    "[::1]:50051",
    "unix:/run/x.sock",
    "grader.ns.svc.cluster.local.:50052",
    "0.0.0.0:1",
]
ADDRESSES_BAD = ["", ":1", "1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:x", "::1:50051", "unix:"]
ADDRESSES_BAD += ["http://x:1", "a b:1", "[::1:1", "127.0.0.1:\u0661"]


@pytest.mark.parametrize("address", ADDRESSES_OK)
def test_addresses(address: str) -> None:
    """HOST:PORT with IPv6 in brackets, and unix:PATH."""
    assert check_address(address) == address


@pytest.mark.parametrize("address", ADDRESSES_BAD)
def test_no_addresses(address: str) -> None:
    """Anything else is refused with an example of what would do; gRPC itself would guess a port or a resolver."""
    with pytest.raises(ValueError, match=r"must look like HOST:PORT, such as 127\.0\.0\.1:50051"):
        check_address(address)


LOOPBACK = ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1", "unix:/x"]
REMOTE = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.example.org:1", "127.example.org:1", "[::2]:1"]


@pytest.mark.parametrize(("address", "local"), [(a, True) for a in LOOPBACK] + [(a, False) for a in REMOTE])
def test_what_other_machines_reach_must_be_asked_for_by_name(address: str, local: bool) -> None:
    """Listening without TLS beyond loopback needs its flag, whatever the name looks like."""
    assert is_loopback(address) is local
    assert GraderSettings(listen=address, allow_insecure_remote=True).listen == address
    if local:
        assert GraderSettings(listen=address).listen == address
    else:
        with pytest.raises(ValidationError, match="needs --allow-insecure-remote"):
            GraderSettings(listen=address)


def test_flags_go_before_variables_before_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting has a flag and a variable; the flag wins."""
    assert load(WorkflowSettings, []).max_watches == 64
    monkeypatch.setenv(WF + "MAX_WATCHES", "7")
    monkeypatch.setenv(WF + "STORE", "memory")
    assert load(WorkflowSettings, []).max_watches == 7
    assert load(WorkflowSettings, ["--max-watches", "9"]).max_watches == 9
    assert load(WorkflowSettings, ["--max-watches=9"]).store == "memory"
    assert load(GraderSettings, []).max_watches == 64


def test_settings_do_not_change() -> None:
    """They are validated once and then fixed."""
    with pytest.raises(ValidationError, match="frozen"):
        GraderSettings().max_watches = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("127.0.0.1:1", True), ("dns:///grader.ns.svc.cluster.local.:50052", True), ("grader", False), ("", False)],
)
def test_the_graders_address(address: str, allowed: bool) -> None:
    """An address without a port is refused, since gRPC would silently take 443."""
    if allowed:
        assert WorkflowSettings(grader=address).grader == address
    else:
        with pytest.raises(ValidationError, match="HOST:PORT"):
            WorkflowSettings(grader=address)


@pytest.mark.parametrize(
    ("store", "path"), [("memory", None), ("sqlite:x.db", Path("x.db")), ("sqlite:/a/b", Path("/a/b")), ("sqlite:a:b", Path("a:b"))]
)
def test_stores(store: str, path: Path | None) -> None:
    """The store names its engine and where it keeps its file."""
    assert WorkflowSettings(store=store).sqlite_path == path


BAD: list[tuple[list[str], dict[str, str], str]] = [
    (["--max-watches", "x"], {}, "--max-watches (or TRIALGYM_WORKFLOW_MAX_WATCHES): must be a valid integer"),
    (["--max-watches", "0"], {}, "must be greater than or equal to 1, not '0'"),
    ([], {WF + "MAX_WATCHES": "many"}, "TRIALGYM_WORKFLOW_MAX_WATCHES): must be a valid integer"),
    (["--listen", "50051"], {}, "--listen (or TRIALGYM_WORKFLOW_LISTEN): must look like HOST:PORT"),
    (["--listen", "0.0.0.0:50051"], {}, "--listen 0.0.0.0:50051 is not a loopback address"),
    (["--grader", "http://x:1"], {}, "--grader (or TRIALGYM_WORKFLOW_GRADER): must look like HOST:PORT"),
    (["--store", "postgres:x"], {}, "--store (or TRIALGYM_WORKFLOW_STORE): must be memory, sqlite:PATH or redis://"),
    (["--store", "sqlite:"], {}, "must be memory, sqlite:PATH or redis://HOST:PORT/DB, not 'sqlite:'"),
    (["--store", "redis://:secret@h:1"], {}, "--store (or TRIALGYM_WORKFLOW_STORE): must not hold a user or a password"),
    (["--store", "redis://h:1/x"], {}, "must look like redis://HOST:PORT/DB"),
    (["--redis-namespace", "a{b}"], {}, "--redis-namespace (or TRIALGYM_WORKFLOW_REDIS_NAMESPACE)"),
    (["--log-format", "xml"], {}, "--log-format (or TRIALGYM_WORKFLOW_LOG_FORMAT): must be 'auto', 'json' or 'console', not 'xml'"),
    (["--drain-grace-s", "nan"], {}, "--drain-grace-s"),
    (["--drain-delay-s", "-1"], {}, "--drain-delay-s"),
    (["--max-connection-age-s", "inf"], {}, "--max-connection-age-s"),
    (["--max-connection-age-s", "0"], {}, "--max-connection-age-s"),
    (["--default-ttl-s", "1e9"], {}, "--default-ttl-s"),
    (["--sweep-interval-s", "0"], {}, "--sweep-interval-s"),
    (["--cache-episodes", "0"], {}, "--cache-episodes"),
    (["--nope"], {}, "unrecognized arguments: --nope"),
    (["--max-watches"], {}, "--max-watches: expected one argument"),
    (["memory"], {}, "unrecognized arguments: memory"),
]


@pytest.mark.parametrize(
    ("argv", "variables", "message"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_mistake_is_told_by_its_names(
    argv: list[str],
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong setting ends the start with status 2 and a line that names flag and variable and says what is allowed."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        load(WorkflowSettings, argv)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert "pydantic" not in said
    assert said.splitlines()[-1].startswith("python -m workflow_service: error: ")


def test_all_mistakes_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each, so that one start shows them all."""
    with pytest.raises(SystemExit):
        load(WorkflowSettings, ["--max-watches=x", "--store=y", "--log-sample=0"])
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize(("module", "settings"), [("workflow_service", WorkflowSettings), ("grader_service", GraderSettings)])
def test_help_tells_every_setting(module: str, settings: type[ServerSettings], tmp_path: Path) -> None:
    """`--help` exits 0 and shows each flag, what it means, its default, and how its variable is called."""
    run = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env=environment(COLUMNS="200"),
    )
    shown = " ".join(run.stdout.split())
    prefix: Any = settings.model_config.get("env_prefix")
    assert f"{prefix}MAX_WATCHES" in shown
    assert f"usage: python -m {module}" in shown
    for name, field in settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert field.description
        assert field.description in shown
        assert f"(default: {field.default})" in shown
    assert list(tmp_path.iterdir()) == []
