"""Codecs by name: one file and one line here for each."""
