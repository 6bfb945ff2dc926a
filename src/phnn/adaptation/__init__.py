"""Model in, adapted model out: small deltas learn while the model is frozen."""

from phnn.adaptation.adapters import Adapter, list_adapters
from phnn.adaptation.adapting import adapt, merge, remove_adapter, use_adapter

__all__ = ["Adapter", "adapt", "list_adapters", "merge", "remove_adapter", "use_adapter"]
