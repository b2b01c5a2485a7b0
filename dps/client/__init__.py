"""What a training loop holds: the session, its pulls and pushes. Outside of this package only `session` is imported."""
