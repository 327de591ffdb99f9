"""Tests of the journal's store."""
