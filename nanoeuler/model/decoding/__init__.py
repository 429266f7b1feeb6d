"""Passes that append tokens to a cache, and sample behind them on a device."""
