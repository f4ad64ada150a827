"""The parts of benchmarks/index.py."""
