"""The command line: `trialgym --help`."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line on the process's arguments."""
    # gRPC's own log lines tell a user of a command nothing that the command's message does not.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from trialgym.cli.app import app

        app()
    except KeyboardInterrupt:  # before a command has begun, or while it ends
        sys.exit(130)
