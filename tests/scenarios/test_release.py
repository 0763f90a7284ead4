"""Scenarios 10 and 11: whatever ends a request early, its charge comes back once, and not too early."""
