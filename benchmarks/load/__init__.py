"""The load: a lean gRPC client of its own, so that the servers are the limit and not who measures them."""
