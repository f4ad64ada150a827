"""The parts of benchmarks/transfer.py."""
