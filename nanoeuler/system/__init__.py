"""What the machine offers: cores, memory, processes, compiled code, versions."""
