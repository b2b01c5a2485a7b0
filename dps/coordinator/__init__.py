"""The coordinator: one program has workers run functions. Their side, and the program's."""
