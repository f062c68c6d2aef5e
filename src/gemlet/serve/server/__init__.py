"""`gemlet serve`: the parts put together, from start to drained end.

server.py           the life of the server;  options.py: its options
requirements.py     whether its libraries are there
listening.py        where it listens, and for which clients
backend_choice.py   what it runs on: backend, devices, profiles
serving_plan.py     which plan is in force when;  initial_plan.py the first one
fleet.py            a plan brought into force;  scaling.py as many executors as the load needs
catalog.py          which models of the repository are served
traces.py           spans of requests for OpenTelemetry;  trace_session.py: how they travel
garbage.py          when Python looks for garbage among all objects
to_its_end.py       waiting for work that cannot be stopped
repository/         models in directories
frontend/           the Open Inference Protocol over HTTP and gRPC
"""
