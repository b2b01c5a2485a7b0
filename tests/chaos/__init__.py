"""Kills, pauses and full disks for real processes, and an independent count of every push: `make chaos`."""
