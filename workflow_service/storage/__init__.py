"""Where episodes are kept: one interface, several engines, one shared suite of tests."""
