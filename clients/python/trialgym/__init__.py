"""Clinical-trial work as reinforcement-learning environments over gRPC."""
