"""What the paper printed, and where it cannot be right."""
