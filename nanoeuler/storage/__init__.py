"""Files, folders, locks and hashes on a disk: what every other room reads and writes with."""
