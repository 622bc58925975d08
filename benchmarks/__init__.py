"""Measurements: ratios against a named floor, taken in one run."""
