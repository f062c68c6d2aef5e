"""Executors: processes that run models on gpu-lets.

backend.py     what a backend is, and what it is given
backends/      one file a backend
worker.py      the process;  protocol.py: what it and the server say;  arena.py: the memory they share
executor.py    the server's side of one process
device.py      the executors of one device, started again when they die
"""
