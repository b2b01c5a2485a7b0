"""What a task's process does with a user's program."""
