"""`trialgym serve --workers N`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import trialgym

SERVE = [sys.executable, "-c", "from trialgym.cli import main; main()", "serve", "--port", "0", "--grader-port", "0"]


def test_serve_with_workers(tmp_path: Path) -> None:
    """It says where it serves and by how many, plays, and ends in order at Ctrl-C without a word on standard error."""
    command = [*SERVE, "--workers", "2", "--store", str(tmp_path / "t.sqlite3")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.match(r"workflow +(\S+:\d+) .*, 2 workers$", process.stdout.readline())
        assert found
        with trialgym.connect(found[1]) as client:
            for seed in range(4):
                episode = client.create_episode("ae_classification", seed=seed)
                client.step(episode, trialgym.submit_findings())
            assert len(list(client.list_episodes())) == 4
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_serve_refuses_what_cannot_be_shared() -> None:
    """Workers with episodes in memory are wrong usage, and the message says what to do."""
    run = subprocess.run([*SERVE, "--workers", "2", "--store", "memory"], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "--workers 2 needs a store that processes can share" in run.stderr
    assert "Traceback" not in run.stderr
