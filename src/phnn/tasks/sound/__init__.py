"""Sound event detection: data, features, metrics."""
