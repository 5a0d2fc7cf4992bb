"""Conclusions from the fits to a study: predictions, what to run next, and sentences on both."""
