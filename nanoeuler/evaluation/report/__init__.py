"""The report of a run: one HTML file that needs no network, from the JSON files of its stages."""
