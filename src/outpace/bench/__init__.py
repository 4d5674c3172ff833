"""Timing with provenance."""
