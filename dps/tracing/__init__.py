"""Traces of the tasks of a run: what each did, and when, on one clock."""
