"""Jupyter's own programs with gemlet on the simulated machine, `make jupyter-test`: kernels, and JupyterHub.

test_jupyter.py    a kernel by `gemlet jupyter install`; a user's server by packaging/jupyter
test_debugpy.py    a program that VS Code's debugger starts
"""
