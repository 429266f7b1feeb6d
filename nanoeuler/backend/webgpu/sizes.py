"""Sizes of tiles and workgroups: the numbers to measure on a new kind of GPU.

Each stands in front of the kernels that read it, as a constant of that name.
"""

THREADS = 128
"""Threads of a workgroup of all kernels but products. A row, or a query, is one workgroup's."""

TILE = 64
"""Rows and columns of a product that a workgroup of (TILE / 4)² threads makes."""

STEP = TILE // 4
"""Elements of the inner dimension that are in a workgroup's memory at a time."""

LARGE_TILE = 128
"""The tile of large products by which their inner dimension is cut: see tilings.py for theirs."""

LEAST_WIDE = 65
"""Rows and columns of a product, at least, that takes such tiles."""

PRODUCT_WORKGROUPS = 256
"""Workgroups that occupy a GPU: with fewer tiles, a product's inner dimension is cut into parts."""

LEAST_INNER = 256
"""Elements of the inner dimension that such a part has at least."""

FEW_ROWS = 8
"""Rows of a product, at most, for which a weight is read once, as in decoding."""

FEW_ROWS_COLUMNS = 4
"""Columns that a workgroup makes there; THREADS / FEW_ROWS_COLUMNS threads share one."""

ATTENTION_ROWS = 8
"""Queries or keys that a workgroup of attention takes, at most: a power of 2."""

LEAST_WIDE_ATTENTION = 16
"""Queries of a row, at least, that attention_wide.wgsl takes."""

WORKGROUP_NUMBERS = 3800
"""Numbers that a kernel keeps in a workgroup's memory, at most: the standard's 16 KB hold 4096."""

RATE_BLOCK = 128
"""Elements that share a rate of AdamW: tensors start on multiples of it."""

COLUMN_PARTS = 128
"""Workgroups, at most, that share the rows of a sum over rows."""

LEAST_COLUMN_ROWS = 16
"""Rows that such a workgroup takes at least."""

SQUARES_PARTS = 256
"""Workgroups that share the sum of a gradient's squares."""

MUON_PARTS = 64
"""Workgroups that share a matrix of Muon."""

DISPATCHES_AT_ONCE = 48
"""Launches that are handed to the device together, at most: it begins while the host goes on."""

MOST_WORKGROUPS = 65535
"""Workgroups in a row of a grid: the standard's limit."""
