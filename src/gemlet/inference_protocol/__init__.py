"""The Open Inference Protocol: its tensors, its messages over gRPC, and the useful part of Triton's configuration.

tensors.py    datatypes, sizes, BYTES on the wire

`make protocol` generates the other modules from the .proto files here; README.md says where those come from.
"""
