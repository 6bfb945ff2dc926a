"""The sections of a report, each from the results to a part of the page."""
