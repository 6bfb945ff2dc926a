"""The exact ways to compute a PH layer, one object each."""
