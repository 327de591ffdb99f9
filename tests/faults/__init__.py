"""The fault suite: what the services promise while processes die, answers get lost, disks fill and networks part.

Each file breaks one kind of thing for real, over the embedded store and over Redis: processes are killed by SIGKILL, connections
are cut after the commit, files are damaged, a disk is a small tmpfs that is filled, a network's router forgets the way.
Meanwhile clients play, and write down all that they asked for and all that they were told (`clients.py`). At the end that record is
held against the trajectories that the service lists and against a run of the same actions without faults (`history.py`): no
acknowledged step may be missing or changed, none may be there that nobody asked for, none twice, and no reward or state hash may
differ. Each test prints its counts (`-s` or `-rP` shows them).

`make test-faults` runs all of it, `make test-faults ROUNDS=20` twenty times in a row, until one round fails. The ordinary test run
leaves out what is marked slow. What needs Redis is skipped where there is none, and what needs to mount a file system or to make
network namespaces is skipped where that is not permitted; in CI (variable CI) a missing Redis is a failure.
"""
