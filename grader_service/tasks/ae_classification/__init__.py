"""Canonical task: seven adverse events of a heart-failure trial as the site graded and reported them."""
