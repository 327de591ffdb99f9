"""The rules of the environments: pure functions of state, action and seed, without clock, I/O or global randomness."""
