# `snakemake` in this folder runs the workflow, as a deployed copy does; workflow/Snakefile says how.
module nanoeuler:
    snakefile:
        "workflow/Snakefile"
    config:
        config


use rule * from nanoeuler
