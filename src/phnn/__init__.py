"""Parameterized hypercomplex neural networks: layers with 1/n of the parameters."""

__version__ = "0.1.0.dev0"
