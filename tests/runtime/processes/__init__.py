"""Real worker processes, real signals."""
