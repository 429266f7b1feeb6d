"""The version of this package, for those inside it: nobody in the house imports its front door."""

__version__ = "0.1.0"
