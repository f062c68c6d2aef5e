"""Executors: processes that run models on gpu-lets.

backend.py     what a backend is, and the specifications it is given
backends/      one file a backend
"""
