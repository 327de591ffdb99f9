"""The trial environment: ten phases, a simulated clinical trial with hidden truth, and the rules that score an agent in it."""
