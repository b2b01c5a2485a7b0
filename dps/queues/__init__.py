"""Queues that the tasks of a run share by name: their messages, their policy, and the actor on the chief's node."""
