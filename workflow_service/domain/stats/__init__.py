"""The statistics of a clinical trial, as pure functions: no clock, no logging, no state, randomness only by argument.

- sample_size, time_to_event, multiplicity: fixed designs
- group_sequential, futility, sample_size_reestimation: looks at accruing data, on sequential_integration
- three_plus_three, boin: dose finding; simon: a single arm with a binary response
- intervals, estimates, missing_data: what the data say

Standardised effects are in units of the outcome's standard deviation. Sample sizes are real numbers until a function
says that it rounds. Every result is a double whose last bits may differ between processors (BLAS, vectorised exp): a
caller that hashes or compares results rounds them first.
"""
