"""Keys: who may connect, and as what."""
