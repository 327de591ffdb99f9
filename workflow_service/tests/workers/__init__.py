"""Several workers behind one port."""
