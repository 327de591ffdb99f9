"""The contract itself: what its descriptors promise every client, in every language."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

import trialgym.v1
from trialgym.rpc import channel, errors
from trialgym.v1 import error_pb2

ROOT = Path(__file__).parent.parent
STUBS = ROOT / "clients/python/trialgym/v1"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROTOS = sorted((ROOT / "protos/trialgym/v1").glob("*.proto"))


def _files() -> list[FileDescriptor]:
    names = [name for _, name, _ in pkgutil.iter_modules(trialgym.v1.__path__) if name.endswith("_pb2")]
    return [importlib.import_module(f"trialgym.v1.{name}").DESCRIPTOR for name in names]


FILES = _files()


def _below(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from _below(nested)


MESSAGES = [each for file in FILES for message in file.message_types_by_name.values() for each in _below(message)]
FIELDS: list[FieldDescriptor] = [field for message in MESSAGES for field in message.fields]
ENUMS: list[EnumDescriptor] = [e for file in FILES for e in file.enum_types_by_name.values()]
ENUMS += [enum for message in MESSAGES for enum in message.enum_types]
METHODS: list[MethodDescriptor] = [
    method for file in FILES for service in file.services_by_name.values() for method in service.methods
]


def test_there_is_something_to_check() -> None:
    """The walks below would hold of nothing, too."""
    assert {file.name for file in FILES} == {f"trialgym/v1/{path.name}" for path in PROTOS}
    assert len(MESSAGES) > 90
    assert len(FIELDS) > 400
    assert len(METHODS) == 21


def test_the_proto_path_is_the_package() -> None:
    """Two projects can only load each other's descriptors side by side if no path and no package is shared."""
    for file in FILES:
        assert file.name.startswith("trialgym/v1/")
        assert file.package == "trialgym.v1"


def test_no_field_is_a_64_bit_integer_or_a_float() -> None:
    """JavaScript would round the first and every language would print another tail of the second."""
    kinds = FieldDescriptor
    banned = {kinds.TYPE_INT64, kinds.TYPE_UINT64, kinds.TYPE_SINT64, kinds.TYPE_FIXED64, kinds.TYPE_SFIXED64, kinds.TYPE_FLOAT}
    assert [field.full_name for field in FIELDS if field.type in banned] == []


def test_no_field_is_untyped() -> None:
    """Struct, Value and Any would make the contract a matter of documentation."""
    allowed = {"google.protobuf.Timestamp", "google.protobuf.Duration"}
    foreign = {
        field.message_type.full_name
        for field in FIELDS
        if field.message_type is not None and not field.message_type.full_name.startswith("trialgym.v1.")
    }
    assert foreign <= allowed


def test_no_group_extension_or_closed_enum() -> None:
    """Only what proto3 has in every language: an unknown enum number must survive a round trip."""
    assert not [file.name for file in FILES if file.extensions_by_name]
    assert not [field.full_name for field in FIELDS if field.type == FieldDescriptor.TYPE_GROUP]
    assert not [enum.full_name for enum in ENUMS if enum.is_closed]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda e: e.full_name)
def test_the_zero_of_every_enum_is_unspecified(enum: EnumDescriptor) -> None:
    """A field that was not set, or that an old client does not know, reads as UNSPECIFIED and nothing else does."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
    assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
    assert [value.number for value in enum.values] == list(range(len(enum.values))), (
        "numbers stand in order, without gaps or aliases"
    )
    assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.full_name)
def test_every_method_says_whether_it_may_be_repeated(method: MethodDescriptor) -> None:
    """The client's retries are computed from `idempotency_level`, so none may be left to its default."""
    assert method.GetOptions().idempotency_level in (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)
    reads = method.name.startswith(("Get", "List", "Describe", "Watch", "Grade", "BatchGrade"))
    assert reads == (method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS)


def test_what_is_not_a_read_can_be_made_safe_to_repeat() -> None:
    """Each method that changes something takes a request_id, or names the state that it ends in and is so idempotent by nature."""
    by_nature = {"RenewEpisodes", "CancelEpisode", "DeleteEpisode", "UpdateCurriculum"}
    for method in METHODS:
        if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS or method.name in by_nature:
            continue
        messages = [method.input_type]
        messages += [field.message_type for field in method.input_type.fields if field.message_type is not None]
        assert any("request_id" in message.fields_by_name for message in messages), method.full_name


def test_retries_are_those_of_the_contract() -> None:
    """The service config retries the calls that may be repeated, on UNAVAILABLE only, a few times; streams resume by themselves."""
    config = json.loads(channel.service_config(wait_for_ready=True))
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    seen = {}
    for entry in config["methodConfig"]:
        (name,) = entry["name"]
        seen[f"{name['service']}.{name['method']}"] = entry
    assert set(seen) == {method.full_name for method in METHODS}
    for method in METHODS:
        entry = seen[method.full_name]
        assert entry["waitForReady"] is True
        streams = method.client_streaming or method.server_streaming
        assert ("retryPolicy" in entry) == (channel.is_retryable(method) and not streams)
        if "retryPolicy" in entry:
            policy = entry["retryPolicy"]
            assert policy["retryableStatusCodes"] == ["UNAVAILABLE"]
            assert 2 <= policy["maxAttempts"] <= 5, "gRPC caps attempts at five and says so in a log line only"


def test_a_method_without_a_level_is_not_retried() -> None:
    """A method that somebody adds without thinking of retries gets none."""

    class Options:
        idempotency_level = MethodOptions.IDEMPOTENCY_UNKNOWN

    class Method:
        def GetOptions(self) -> Options:  # noqa: N802 - protobuf's own name
            return Options()

    assert not channel.is_retryable(Method())  # type: ignore[arg-type]


def test_clients_ping_no_more_often_than_servers_allow() -> None:
    """A client that pings twice as often as the server's least interval is cut off with "too many pings"."""
    client, server = dict(channel.client_options()), dict(channel.server_options())
    assert client["grpc.keepalive_time_ms"] >= 2 * server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert server["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.keepalive_timeout_ms"] < client["grpc.keepalive_time_ms"]


def test_the_numbers_of_both_ends_fit_together() -> None:
    """What one end may send the other takes, and a connection is never closed under a call that may still run."""
    client, server = dict(channel.client_options()), dict(channel.server_options())
    assert client["grpc.max_receive_message_length"] == 4 * 1024 * 1024, "the default of every language"
    assert server["grpc.max_receive_message_length"] > channel.SERVER_RECEIVE_BYTES >= 8 * 1024 * 1024
    assert server["grpc.max_connection_age_grace_ms"] >= 1000 * channel.MAX_DEADLINE_S
    assert server["grpc.so_reuseport"] == 0
    assert client["grpc.enable_http_proxy"] == 0


_DECLARES = re.compile(
    r"^\s*(?:(?:optional |repeated )?(?:map<[^>]+>|[\w.]+) \w+ = \d+|[A-Z][A-Z0-9_]+ = \d+|(?:rpc|message|enum|service|oneof) \w+)"
)


@pytest.mark.parametrize("path", PROTOS, ids=lambda p: p.name)
def test_everything_declared_has_a_sentence(path: Path) -> None:
    """A reader of the stubs in any language finds what each method, message, field and value means."""
    lines = path.read_text().splitlines()
    bare = [
        f"{path.name}:{number + 1}: {line.strip()}"
        for number, line in enumerate(lines)
        if _DECLARES.match(line) and not lines[number - 1].lstrip().startswith("//")
    ]
    assert not bare
    assert any(_DECLARES.match(line) for line in lines)


# Errors

CODES = {
    "INVALID_ARGUMENT": ("INVALID_FIELD", "BATCH_TOO_LARGE", "INVALID_PAGE_TOKEN", "REQUEST_ID_REUSED"),
    "NOT_FOUND": ("NOT_FOUND", "EPISODE_EXPIRED"),
    "ABORTED": ("STEP_MISMATCH", "WATCH_TOO_SLOW", "CANCELLED_ELSEWHERE", "ETAG_MISMATCH"),
    "FAILED_PRECONDITION": ("EPISODE_FINISHED", "VERSION_MISMATCH"),
    "RESOURCE_EXHAUSTED": ("CAPACITY", "QUOTA"),
    "UNAVAILABLE": ("GRADER_UNAVAILABLE", "DRAINING", "STORE_UNAVAILABLE"),
    "DEADLINE_EXCEEDED": ("DEADLINE_EXCEEDED",),
    "UNAUTHENTICATED": ("UNAUTHENTICATED",),
    "PERMISSION_DENIED": ("PERMISSION_DENIED",),
    "INTERNAL": ("INTERNAL",),
}
"""The published table of canonical codes and reasons."""

REASONS = {reason: grpc.StatusCode[code] for code, reasons in CODES.items() for reason in reasons}


def test_the_table_of_errors_is_the_contracts() -> None:
    """Every reason of the contract has one class with its canonical code, and there is no class beyond them."""
    declared = {name.removeprefix("ERROR_REASON_"): number for name, number in error_pb2.ErrorReason.items() if number}
    assert set(declared) == set(REASONS)
    assert {reason: errors.BY_REASON[number].code for reason, number in declared.items()} == REASONS
    assert set(errors.BY_REASON) == set(declared.values())
    for reason, number in declared.items():
        assert errors.BY_REASON[number].reason == number
        bare = errors.BY_REASON[number].__new__(errors.BY_REASON[number])
        assert bare.reason_name == reason


def test_the_contracts_sentences_name_the_same_codes() -> None:
    """What error.proto says beside each reason is what the servers send."""
    text = (ROOT / "protos/trialgym/v1/error.proto").read_text()
    said = dict(re.findall(r"// ([A-Z_]+): [^\n]*\n\s*ERROR_REASON_([A-Z_]+) =", text))
    assert {
        reason: grpc.StatusCode[code] for code, reason in re.findall(r"// ([A-Z_]+): [^\n]*\n\s*ERROR_REASON_([A-Z_]+) =", text)
    } == REASONS
    assert said


def test_only_what_changed_nothing_is_unavailable() -> None:
    """UNAVAILABLE is what clients repeat on their own, so nothing that a repeat cannot cure may carry it."""
    unavailable = {cls for cls in errors.BY_REASON.values() if cls.code is grpc.StatusCode.UNAVAILABLE}
    assert unavailable == {errors.GraderUnavailable, errors.Draining, errors.StoreUnavailable}
    assert all(issubclass(cls, errors.Unavailable) for cls in unavailable)


# Generated code and what it needs


def _floors() -> dict[str, str]:
    found = {}
    for requirement in PROJECT["project"]["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\w.]+),<[\w.]+(?:; .*)?", requirement)
        assert match, f"{requirement} needs a floor and a cap"
        found[match[1]] = match[2]
    return found


def test_the_floors_are_those_of_the_generated_code() -> None:
    """The stubs refuse an older runtime when they are imported, so the package must not let one be installed."""
    gencode = {re.search(r"Protobuf Python Version: ([\d.]+)", p.read_text())[1] for p in STUBS.glob("*_pb2.py")}  # type: ignore[index]
    grpc_code = {re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", p.read_text())[1] for p in STUBS.glob("*_pb2_grpc.py")}  # type: ignore[index]
    floors = _floors()
    assert gencode == {floors["protobuf"]}
    assert grpc_code == {floors["grpcio"]}
    assert f"grpcio-tools=={floors['grpcio']}" in PROJECT["build-system"]["requires"]
    for companion in ("grpcio-health-checking", "grpcio-reflection", "grpcio-status"):
        assert floors[companion] == floors["grpcio"]


def test_stubs_are_not_committed() -> None:
    """They are made at install, so that contract and code cannot drift apart."""
    tracked = subprocess.run(["git", "ls-files", "*_pb2*"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert tracked == ""


BESIDE = """
import google.api.annotations_pb2, google.rpc.code_pb2, google.rpc.error_details_pb2, google.rpc.status_pb2, google.type.date_pb2
import importlib, pkgutil
import trialgym.v1
for _, name, _ in pkgutil.iter_modules(trialgym.v1.__path__):
    importlib.import_module(f"trialgym.v1.{name}")
import trialgym.rpc.server, trialgym.rpc.errors
"""


def test_the_stubs_load_beside_googles_common_protos() -> None:
    """One process has one pool of descriptors; ours clash with none of Google's."""
    subprocess.run([sys.executable, "-W", "error", "-c", BESIDE], check=True, timeout=60)


PLAY = """
import asyncio, tempfile
from grader_service.__main__ import running as grader
from grader_service.settings import GraderSettings
from trialgym.rpc.channel import open_channel
from trialgym.rpc.server import run
from trialgym.v1 import workflow_service_pb2 as ws, workflow_service_pb2_grpc as stubs
from workflow_service.__main__ import running as workflow
from workflow_service.settings import WorkflowSettings

async def main():
    assert type(asyncio.get_running_loop()).__module__ == "uvloop", "a server's loop"
    with tempfile.TemporaryDirectory() as folder:
        async with grader(GraderSettings(listen="127.0.0.1:0", reflection=True)) as g:
            settings = WorkflowSettings(listen="127.0.0.1:0", grader=g.address, store=f"sqlite:{folder}/t.sqlite3")
            async with workflow(settings) as w, open_channel(w.address) as channel:
                stub = stubs.WorkflowServiceStub(channel)
                made = await stub.CreateEpisode(ws.CreateEpisodeRequest(episode={"review": {"task": "tasks/ae_classification"}}))
                step = ws.StepEpisodeRequest(name=made.name, request_id="1", action={"submit_findings": {"submission": {}}})
                print((await stub.StepEpisode(step)).transition.state_hash)

run(main())
"""


@pytest.mark.slow
def test_the_oldest_versions_allowed_work(tmp_path: Path) -> None:
    """With every dependency at its floor the stubs load and an episode can be played over the wire."""
    venv.create(tmp_path / "floors", with_pip=True)
    python = tmp_path / "floors/bin/python"
    pins = [f"{name}=={version}" for name, version in _floors().items()]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins], check=True, timeout=900)
    path = f"{ROOT / 'clients/python'}:{ROOT}"
    environment = {"PYTHONPATH": path, "PATH": ""}
    run = subprocess.run([python, "-c", PLAY], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert re.fullmatch(r"[0-9a-f]{32}", run.stdout.strip().splitlines()[-1])
