"""The statistics of a clinical trial, as pure functions: no clock, no logging, no state, randomness only by argument.

Standardised effects are in units of the outcome's standard deviation. Sample sizes are real numbers until a function
says that it rounds. Every result is a double whose last bits may differ between processors (BLAS, vectorised exp): a
caller that hashes or compares results rounds them first.
"""
