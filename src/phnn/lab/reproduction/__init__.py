"""The whole paper by one command: every table and figure, beside what the paper prints."""

from phnn.lab.reproduction.estimate import Estimate, estimate_hours
from phnn.lab.reproduction.reproducing import reproduce

__all__ = ["Estimate", "estimate_hours", "reproduce"]
