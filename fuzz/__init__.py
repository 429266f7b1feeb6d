"""Campaigns that try to break the readers of nanoeuler, and runs that are killed or out of disk.

    python -m fuzz --minutes 60                             every reader in turn, then a table
    python -m fuzz --campaign http --seed 7 --case 4711     that one case again
    python -m fuzz.torture --kills 200                      trainers and Snakemake under kill -9
    python -m fuzz.full_disk                                every write of a run fails once
    python -m fuzz.mutants                                  what catches planted mistakes

docs/reliability.md says what is promised and what these have shown.
"""
