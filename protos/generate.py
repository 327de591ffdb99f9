"""Makes the stubs of every language from the contract: the one way they are made.

    python protos/generate.py python [--out DIR]

The Python stubs need grpcio-tools and mypy-protobuf (declared as build requirements) and land in clients/python, where the
proto path `trialgym/v1` is the import path, so nothing is rewritten afterwards.
"""

from __future__ import annotations

import argparse
import importlib.resources
import shutil
import sys
import sysconfig
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent
PACKAGE = Path("trialgym", "v1")


def contract() -> list[str]:
    """The contract's files, as paths below protos/, in a fixed order."""
    return sorted(path.relative_to(PROTOS).as_posix() for path in (PROTOS / PACKAGE).glob("*.proto"))


def plugin(name: str) -> str:
    """The path of a protoc plugin that was installed beside this interpreter or stands on the PATH."""
    beside = Path(sysconfig.get_path("scripts"), name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed; install mypy-protobuf into this environment and run this again")
    return found


def generate_python(out: Path) -> list[Path]:
    """Writes messages, their types, the gRPC stubs and their types below `out`; returns the files it wrote."""
    from grpc_tools import protoc

    target = out / PACKAGE
    if target.exists():
        shutil.rmtree(target)  # a renamed proto must not leave its old module behind
    target.mkdir(parents=True)
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    status: int = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{well_known}",
            f"--plugin=protoc-gen-mypy={plugin('protoc-gen-mypy')}",
            f"--plugin=protoc-gen-mypy_grpc={plugin('protoc-gen-mypy_grpc')}",
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            *contract(),
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}; its message above names the file and line")
    (target / "__init__.py").write_text('"""The contract, generated from protos/trialgym/v1; do not edit."""\n')
    return sorted(target.iterdir())


LANGUAGES = {"python": (generate_python, ROOT / "clients" / "python")}


def main(argv: list[str]) -> None:
    """Makes the stubs of the languages named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("languages", nargs="+", choices=sorted(LANGUAGES), help="which stubs to make")
    parser.add_argument("--out", type=Path, help="where to put them; each language's own folder if left out")
    args = parser.parse_args(argv)
    for language in args.languages:
        make, home = LANGUAGES[language]
        for path in make(args.out or home):
            print(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    main(sys.argv[1:])
