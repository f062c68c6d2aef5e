"""Open-loop load on any server of the Open Inference Protocol v2: requests go out when they are due.

A latency counts from the moment at which the request was due, not from when it could be sent: a server that stalls, or
a generator that is late, cannot hide what its users would have waited (coordinated omission). Nothing is closed-loop.

job.py         what to send, to whom, how fast
measure.py     one run from its job to its report
arrivals.py    when requests come: a rate over time, and how regular the gaps are
model_metadata.py    what the server says of its models, and its statistics
inputs.py      tensors made from a model's metadata
messages.py    whole requests, ready to be written
timer.py       waking up on time
generator.py   one process: arrivals out, replies in
http_client.py, grpc_client.py    the two ways to a server
processes.py   several generators when one core is not enough
recording.py   what became of each request
intervals.py   the same by the second
report.py      numbers;  table.py: how they are printed, perf_analyzer's columns among them
"""
