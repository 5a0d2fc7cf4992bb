"""The cells of a study: means over seeds, times to targets, best learning rates, speed-ups."""
