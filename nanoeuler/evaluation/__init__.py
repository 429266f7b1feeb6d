"""What a trained model is worth: held-out text, exact answers, samples, and the report of a run."""
