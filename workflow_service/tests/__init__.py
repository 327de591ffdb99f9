"""Tests of the workflow service."""
