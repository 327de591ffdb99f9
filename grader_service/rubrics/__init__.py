"""Ways to score a submission, chosen by name."""
