"""Models written for Triton's Python backend: files with the class TritonPythonModel, served as it is.

backend_utils.py    what such a model imports as `triton_python_backend_utils`
python_model.py     one model: its class, its requests and responses
responses.py        what an answer is
nested.py           requests that a model sends to other models while it works on its own
completing.py       a process that asks a model, or an ONNX file, for what its config.pbtxt leaves out

The module is known by its name only in processes that load such a model. Nothing here is Triton's code.
"""
