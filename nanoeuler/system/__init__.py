"""The machine: cores, memory, processes, compiled code, versions."""
