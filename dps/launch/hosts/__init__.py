"""Machines that run tasks: what one has, the host process that starts tasks on another, and its connection."""
