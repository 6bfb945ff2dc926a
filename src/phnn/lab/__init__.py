"""What trains, compares, reports and reproduces the paper; needs the extra `train`."""
