"""A repository written for Triton, and questions to it: to gemlet in `make test`, to Triton too in `make triton-test`.

repository/          models as Triton's documents show them, and one that does what a model may and may not
probes.py            requests, and what of an answer must be the same
answers.json         what Triton answered, written by `make triton-test`
triton_server.py     the tritonserver that nvidia-pytriton holds
test_both_servers.py the same to both: answers.json is still true, and gemlet differs where a reason is given only
"""
