"""Measure trained models: held-out text, tasks, exact answers, samples, and reports of runs."""
