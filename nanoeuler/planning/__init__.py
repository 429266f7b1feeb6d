"""Time, disk and memory of a run before it starts, and configurations that fit one's own text."""
