"""What the package exports, and that its two clients offer the same."""

from __future__ import annotations

import inspect
import subprocess
import sys

import trialgym
from trialgym.rpc import errors as tree


def test_every_name_is_there() -> None:
    for name in trialgym.__all__:
        assert getattr(trialgym, name) is not None
    assert set(trialgym.__all__) <= set(dir(trialgym))


def test_every_error_of_the_services_is_exported() -> None:
    classes = {name for name, value in vars(tree).items() if inspect.isclass(value) and issubclass(value, tree.TrialgymError)}
    assert classes == set(trialgym.errors.__all__)
    assert all(getattr(trialgym.errors, name) is getattr(tree, name) for name in classes)


def _methods(cls: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(value).parameters)
        for name, value in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_take_the_same_calls() -> None:
    assert _methods(trialgym.Client) == _methods(trialgym.aio.AsyncClient)
    assert _methods(trialgym.EpisodeHandle) == _methods(trialgym.aio.AsyncEpisodeHandle)
    assert _methods(trialgym.EpisodeGroup) == _methods(trialgym.aio.AsyncEpisodeGroup)
    assert list(inspect.signature(trialgym.connect).parameters) == list(inspect.signature(trialgym.aio.connect).parameters)


def test_every_rpc_has_a_method() -> None:
    from trialgym.flows import methods
    from trialgym.flows.effects import Method
    from trialgym.rpc.channel import SERVICES

    unary = {value.path.rpartition("/")[2] for value in vars(methods).values() if isinstance(value, Method)}
    assert unary | {"StreamSteps", "WatchEpisodes"} == {method.name for service in SERVICES for method in service.methods}


def test_importing_the_package_loads_no_grpc() -> None:
    check = "import sys, trialgym; print('grpc' in sys.modules, 'google.protobuf' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.split() == ["False", "False"]
