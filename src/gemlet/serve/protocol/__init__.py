"""Messages of the Open Inference Protocol over gRPC, and the useful part of Triton's model configuration.

Generated from the .proto files beside this by `make protocol`; README.md says where those come from.
"""
