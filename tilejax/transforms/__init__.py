"""Analyses and rewrites of programs."""
