"""Who may import whom: the rules of the architecture, read off the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"trialgym": ROOT / "clients/python/trialgym", "grader_service": ROOT / "grader_service"}
PACKAGES["workflow_service"] = ROOT / "workflow_service"
SERVICES = ("grader_service", "workflow_service")
OURS = tuple(PACKAGES)

NUMERIC = {"numpy", "scipy"}
UNPURE = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
    "pathlib",
}
"""Modules of the standard library that bring a clock, chance, the environment or the outside world."""

CONCRETE = {
    "grader_service.rubrics.keyword",
    "grader_service.rubrics.structured",
    "grader_service.servicer",
    "workflow_service.environments",
    "workflow_service.grader_client",
    "workflow_service.servicer",
    "workflow_service.storage.memory",
    "workflow_service.storage.redis",
    "workflow_service.storage.sqlite_journal",
    "workflow_service.workers.servicer",
    "workflow_service.workers.store",
}
"""Modules whose classes stand behind an interface."""


@dataclass(frozen=True)
class Module:
    """A module of ours, with the dotted names of everything that it imports."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of each import; `from a import b` counts as `a.b`, since b may be a module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._package(node.level) + ([node.module] if node.module else [])
                yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)

    def _package(self, level: int) -> list[str]:
        """The package that a relative import of so many dots starts from; nothing for an absolute one."""
        parts = self.name.split(".")
        return parts[: len(parts) - level + (self.path.name == "__init__.py")] if level else []

    def sees(self, *prefixes: str) -> list[str]:
        """The imports below any of the prefixes, with their places."""
        return [
            f"{self.path.relative_to(ROOT)}:{line} imports {name}"
            for line, name in self.imports()
            if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        ]

    @property
    def file(self) -> str:
        """The file's name."""
        return self.path.name

    def below(self, *prefixes: str) -> bool:
        """Whether the module is one of these packages or lies in one."""
        return any(self.name == prefix or self.name.startswith(prefix + ".") for prefix in prefixes)


def _modules() -> list[Module]:
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if "tests" in parts:
                continue
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found.append(Module(name, path, ast.parse(path.read_text(), str(path))))
    return found


MODULES = _modules()
DOMAIN = [m for m in MODULES if m.below("grader_service.domain", "workflow_service.domain")]


def _none(violations: list[str]) -> None:
    assert not violations, "\n" + "\n".join(violations)


def test_there_is_something_to_check() -> None:
    """The rules below would hold of nothing, too."""
    assert len(MODULES) > 60
    assert len(DOMAIN) > 10


def test_the_stubs_import_nothing_of_ours() -> None:
    """1. The generated contract stands alone."""
    stubs = [m for m in MODULES if m.below("trialgym.v1")]
    assert len(stubs) > 20
    _none([v for m in stubs for v in m.sees(*OURS) if "imports trialgym.v1." not in v])


def test_the_plumbing_imports_the_contract_only() -> None:
    """2. What services and SDK share knows neither of them."""
    allowed = ("imports trialgym.v1", "imports trialgym.rpc")
    plumbing = [m for m in MODULES if m.below("trialgym.rpc")]
    _none([v for m in plumbing for v in m.sees(*OURS) if not any(a in v for a in allowed)])


@pytest.mark.parametrize("module", DOMAIN, ids=lambda m: m.name)
def test_the_domain_is_pure(module: Module) -> None:
    """3. The domain imports the standard library, numpy, scipy and itself; no clock, no chance, no environment, no I/O."""
    service = module.name.partition(".")[0]
    for line, name in module.imports():
        top = name.partition(".")[0]
        own = name.startswith(f"{service}.domain.")
        assert own or top in NUMERIC or (top in sys.stdlib_module_names and top not in UNPURE), (
            f"{module.path}:{line} imports {name}"
        )
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "random":
            makes = {"Generator", "Philox", "SeedSequence", "PCG64", "BitGenerator", "default_rng"}
            assert node.attr in makes, f"{module.path}:{node.lineno} draws from numpy's global random state"
            if node.attr == "default_rng":
                pytest.fail(f"{module.path}:{node.lineno} makes a generator without saying which; name it and its seed")
        if isinstance(node, ast.Name):
            assert node.id not in {"open", "input", "print"}, f"{module.path}:{node.lineno} uses {node.id}"


def _messages(module: Module) -> list[str]:
    """The imports of messages; the stubs that carry them are no messages."""
    return [violation for violation in module.sees("trialgym.v1") if not violation.endswith("_pb2_grpc")]


def test_only_convert_sees_messages_and_domain() -> None:
    """4. One file of each service knows both the wire's messages and the domain's values, and one that writes answers as bytes."""
    _none(
        [
            violation
            for m in MODULES
            if m.below(*SERVICES) and m.file not in {"convert.py", "answers.py"} and _messages(m)
            for violation in m.sees("grader_service.domain", "workflow_service.domain")
            if ".domain.errors." not in violation  # a handler maps what the domain refuses
        ]
    )


def test_servicers_do_not_touch_storage() -> None:
    """5. Handlers reach episodes through the engine only."""
    _none([v for m in MODULES if m.file == "servicer.py" for v in m.sees("workflow_service.storage")])


def test_storage_sees_the_domain_only() -> None:
    """6. A store knows values, and nothing of engines, messages or the wire."""
    storage = [m for m in MODULES if m.below("workflow_service.storage")]
    allowed = ("imports workflow_service.domain", "imports workflow_service.storage")
    _none([v for m in storage for v in m.sees(*OURS, "grpc", "google") if not any(a in v for a in allowed)])


def test_engines_see_interfaces() -> None:
    """7. The engine and what it is made of name no store, no client and no message."""
    inner = ("engine", "stepping", "live", "leases", "watch", "refusals", "ports", "grader_port")
    modules = [m for m in MODULES if m.name in {f"workflow_service.{name}" for name in inner}]
    assert len(modules) == len(inner)
    _none([v for m in modules for v in m.sees(*CONCRETE, "workflow_service.convert", "trialgym.v1", "grpc", "google")])


def test_only_main_names_concrete_classes() -> None:
    """8. What stands behind an interface is chosen in one place."""
    _none([v for m in MODULES if m.file != "__main__.py" and m.name not in CONCRETE for v in m.sees(*CONCRETE)])


def test_the_services_do_not_import_each_other() -> None:
    """9. So no answer key can exist in the workflow's process."""
    one, other = SERVICES
    _none([v for m in MODULES if m.below(one) for v in m.sees(other)])
    _none([v for m in MODULES if m.below(other) for v in m.sees(one)])


def test_the_sdk_imports_no_service() -> None:
    """A trainer uses the SDK alone; only the command line starts services, through their `__main__` and settings.

    Its trial policies and canaries are the workflow's own, played outside of it, and see its pure domain.
    """
    sdk = [m for m in MODULES if m.below("trialgym") and not m.below("trialgym.cli")]
    _none([v for m in sdk for v in m.sees(*SERVICES)])
    cli = [m for m in MODULES if m.below("trialgym.cli")]
    doors = [f"imports {service}.{part}" for service in SERVICES for part in ("__main__", "settings")]
    doors.append("imports workflow_service.storage.base.Store")  # the errors of a store that cannot be opened
    doors.append("imports workflow_service.workers.supervisor")  # which starts a service of several processes
    players = ("trialgym.cli.trials", "trialgym.cli.canaries")
    _none(
        [
            violation
            for m in cli
            for violation in m.sees(*SERVICES)
            if not any(door in violation for door in doors)
            and not (m.name in players and "imports workflow_service.domain" in violation)
        ]
    )


def _calls(module: Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))


def test_only_the_interceptor_aborts() -> None:
    """Handlers raise; a second place that aborts would send errors without reason and incident."""
    _none(
        [
            f"{m.path.relative_to(ROOT)}:{call.lineno}"
            for m in MODULES
            if m.name != "trialgym.rpc.interceptor" and not m.below("trialgym.v1")
            for call in _calls(m)
            if isinstance(call.func, ast.Attribute) and call.func.attr in {"abort", "abort_with_status", "set_code", "set_details"}
        ]
    )


@pytest.mark.parametrize("banned", ["pickle", "marshal", "shelve", "dill"])
def test_nothing_is_unpickled(banned: str) -> None:
    """Formats that execute what they read are imported nowhere."""
    _none([v for m in MODULES for v in m.sees(banned)])


def test_nothing_is_evaluated_or_printed() -> None:
    """No `eval`, `exec`, `compile`, `__import__`, and no `print`: services log, and the command line writes through its console."""
    banned = {"eval", "exec", "compile", "__import__", "print", "breakpoint"}
    _none(
        [
            f"{m.path.relative_to(ROOT)}:{call.lineno} calls {call.func.id}"
            for m in MODULES
            if not m.below("trialgym.v1")
            for call in _calls(m)
            if isinstance(call.func, ast.Name) and call.func.id in banned
        ]
    )


def test_processes_are_spawned_never_forked() -> None:
    """A fork copies gRPC's locks without its threads, so `os.fork` and multiprocessing without an explicit spawn are out."""
    for m in MODULES:
        for call in _calls(m):
            name = ast.unparse(call.func)
            assert name not in {"os.fork", "os.forkpty", "pty.fork"}, f"{m.path}:{call.lineno} forks"
            if name.endswith(("get_context", "set_start_method")):
                assert [ast.literal_eval(a) for a in call.args] == ["spawn"], f"{m.path}:{call.lineno} {ast.unparse(call)}"
            if name.endswith("ProcessPoolExecutor"):
                assert any(k.arg == "mp_context" for k in call.keywords), (
                    f"{m.path}:{call.lineno} does not say how it starts processes"
                )
            assert not name.endswith(("multiprocessing.Process", "multiprocessing.Pool")), f"{m.path}:{call.lineno} {name}"
