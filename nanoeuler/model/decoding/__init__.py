"""Keys and values of past tokens, and the passes that append to them."""
