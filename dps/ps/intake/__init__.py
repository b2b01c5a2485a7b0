"""Pushes on their way in: checked as they arrive, until one is whole."""
