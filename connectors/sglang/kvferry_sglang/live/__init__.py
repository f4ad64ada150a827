"""What changes while a server of SGLang runs, and pages in the pool must not suffer from: weights, roles."""
