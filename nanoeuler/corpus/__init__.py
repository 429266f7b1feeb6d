"""From addresses and files to a clean corpus: fetching, cleaning, deduplication, held-out text."""
