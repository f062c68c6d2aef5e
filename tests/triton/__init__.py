"""A repository written for Triton, and questions to it: to gemlet in `make test`, to Triton too in `make triton-test`.

repository/          models as Triton's documents show them, and one that does what a model may and may not
probes.py            requests, and what of an answer must be the same
client_probes.py     what NVIDIA's examples of clients do, by tritonclient, and what came of it
answers.json         what Triton answered, written by `make triton-test`
install              puts what follows into build/triton
triton_server.py     the tritonserver that nvidia-pytriton holds
perf_analyzer.py     NVIDIA's perf_analyzer, from the wheel of an earlier tritonclient
test_both_servers.py the same to both: answers.json is still true, and gemlet differs where a reason is given only
"""
