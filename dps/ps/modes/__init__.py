"""The update modes: when a push is applied, and with which others."""
