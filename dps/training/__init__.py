"""What a user chooses for training: optimizers, schedules, averages, update modes, compression. Data, no arithmetic."""
