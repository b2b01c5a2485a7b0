"""Intake of pushes: they are checked as they arrive, until one is complete."""
