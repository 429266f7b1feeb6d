"""The report of a run: one HTML file that needs no network, written from the JSON files that the stages leave."""
