"""The real endpoint: ZeroMQ sockets, datagrams, and their upkeep."""
