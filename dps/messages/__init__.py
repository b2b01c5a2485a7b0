"""The protocols of sessions and of runs: messages between session, ps and chief, and the results of calls."""
