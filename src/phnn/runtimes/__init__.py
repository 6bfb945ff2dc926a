"""Where a module runs and is timed."""
