"""What the networks are for: data sets, training and the recipes of the paper."""
