"""The parts of `tests/benchmarks/throughput.py`: each measures cl2r's way of doing something beside the usual one."""
