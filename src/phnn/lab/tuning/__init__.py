"""Tuning: a study searches the options of a recipe by trials, which are runs; extra `tune`."""

STUDY = "study.json"  # the summary of a study, in the folder of its results
