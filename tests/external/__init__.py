"""Tests of programs of the user's own."""
