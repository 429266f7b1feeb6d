"""Numbers of the chips for which the kernels are laid out."""

WARP = 32

STATIC_SHARED = 48 * 1024
"""Bytes of static shared memory that a block may take."""

BLOCK_SHARED = 227 * 1024
"""Bytes of shared memory that a block of a chip with clusters may take."""

CHIP_BLOCKS = 132
"""Blocks that use all multiprocessors of the largest such chip."""
