"""What a run will cost in time, disk and memory, and configurations made to fit one's own text."""
