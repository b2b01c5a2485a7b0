"""Calls: functions that clients have a worker run. What travels, and what the worker's node does with it."""
