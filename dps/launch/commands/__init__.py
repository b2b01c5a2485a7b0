"""The commands that start runs and look at them."""
