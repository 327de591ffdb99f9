"""Several processes of the workflow service on one machine behind one port: `--workers N`.

A parent proves that the port is free, spawns the workers and watches over them (`supervisor`, `__main__`), and serves nothing.
With Redis every worker serves every episode. With SQLite each worker owns the episodes whose ids say so (`placing`) in a journal of
its own (`files`), and a call that reaches another worker is handed on over a unix socket (`servicer`, `peers`).
"""
