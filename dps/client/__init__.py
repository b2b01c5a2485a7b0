"""The session of a training loop, its pulls and pushes. Outside of this package only `session` is imported."""
