"""The Open Inference Protocol: its tensors, its messages over gRPC, and the useful part of Triton's configuration.

tensors.py    datatypes, sizes, BYTES on the wire
*_pb2.py      generated from the .proto files beside this by `make protocol`; README.md says where those come from
"""
