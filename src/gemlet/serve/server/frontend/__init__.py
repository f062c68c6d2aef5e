"""The Open Inference Protocol v2, over HTTP and gRPC, and what Triton's clients ask beyond it.

service.py       what a frontend asks the server for
status.py        which status a refusal has in either protocol
intake.py        what both protocols do alike with a request, and with its answer
infer_json.py    a request and its answer as JSON and binary tensors;  json_tensors.py: a tensor as a list in JSON
answer_form.py   which outputs an answer has, and how each is sent;  pieces.py: large ones, without copies
request_checks.py shapes, sizes and texts that a request may have;  request_parameters.py: what its parameters ask for
connections.py   listens for either protocol, and chooses which connections there may be
http_server.py   what those of HTTP share;  http_connection.py: one of them: turns, order of answers, back pressure
http_incoming.py the request that comes on one, as it is parsed
large_body.py    what comes piece by piece, whose memory goes back in turns
http_exchange.py a request and its answer;  http_inference.py: inference;  http_routes.py: everything else
grpc_server.py   inference over gRPC, and streams of it;  infer_messages.py: a request and its answer as messages
raw_messages.py  usual requests over gRPC, read by their bytes
grpc_connection.py HTTP/2: a connection, its calls, back pressure;  grpc_rest.py: the rest of large answers
grpc_call.py     one call;  grpc_header.py: what it asks for;  grpc_wire.py: gRPC's own format within HTTP/2
grpc_frames.py   whether a header has begun that has no end yet
grpc_procedures.py everything but inference;  health.py: gRPC's own health checks
regions.py       shared memory of clients;  region_write.py: writes there;  region_writer.py: in processes
device_memory.py regions on devices, in a process that copies;  device_copies.py: what that does, by the driver
access.py        tokens
limits.py        what a client may take;  holdings.py: what they all hold, and who ends when that is too much
one_by_one.py    work of a client that takes its turns
fair_turn.py     a turn that one has at a time: whose large request is read next, which model is loaded
unpacking.py     processes that read what takes time by its size;  passing.py: how large bytes come there and back
own_process.py   how what these processes refuse comes back
documents.py     metadata, statistics, configuration as JSON
metrics.py       /metrics;  triton_metrics.py: the same by Triton's names
shared_text.py   what is of all models, made once for all who ask
logs.py          the last lines of the log, and those to come
"""
