"""An attack on phnn that can be repeated: `make test-attack`; not part of the test suite."""
