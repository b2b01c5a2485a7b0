"""This process: its settings, its log, its flags, its files and descriptors, and how its modules are loaded."""
