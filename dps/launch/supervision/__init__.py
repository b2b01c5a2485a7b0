"""The tasks of a launched run: started, watched, started again, ended."""
