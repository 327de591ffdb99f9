"""What is graded, by what, into what: values and pure functions, without wire, clock or log."""
