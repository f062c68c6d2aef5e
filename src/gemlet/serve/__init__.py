"""Serving models on gpu-lets: profiles, plans, queues, executors, and the server that puts them together.

profiles/    how long a model takes by (SM share, batch), and what neighbours cost it
models/      what a model is; those that are built from code
plan/        which model on which gpu-let
execution/   processes that run models
dispatch/    the way of a request: queued, batched, executed, answered
control/     new plans as the load changes
server/      `gemlet serve`: all of that put together, with frontends and a model repository
profiling/   `gemlet profile`
helper_process.py    how processes of the server's own end
end_signals.py   which signals end a server, and nothing that it has started
standalone.py    `gemlet infer`: one model in an executor, without a server
examples/    a repository and its traffic

Each imports only from those above it. gemlet.load sends requests to a server, gemlet.simulate.serving runs the queues
in virtual time.
"""
