"""What a process is in a run: a server with a node, the actors that it hosts, and its end."""
