"""Serving models on gpu-lets: profiles, plans, queues, a simulator in virtual time and a server of the same queues.

profiles.py    latency by (SM share, batch), memory, interference vectors; surface.py fills what was not measured
modelled.py    profiles computed from data sheets, and marked so;  measured/ profiles that are part of gemlet
planner/       which model on which gpu-let: pure, one file a policy
queue.py       batching, early drop and routing, driven by explicit time
waiting.py     one of its queues
arrivals.py    when requests come
simulator.py   queue.py in virtual time
glet_files.py  rates.csv and ModelList.txt of glet; demand_file.py our own
files.py       opens demands, profiles and plans
picture.py     a plan as SVG and as text

server.py      `gemlet serve`: what follows put together
repository/    models in directories;  catalog.py which of them are served
frontend/      the Open Inference Protocol over HTTP and gRPC
engine.py      the way of a request through queue.py to an executor and back
execution/     processes that run models
fleet.py       a plan brought into force;  initial_plan.py the first one;  choice.py what to run on
control/       new plans as the load changes;  scaling.py as many executors as they need

profiling/     `gemlet profile`;  models/ what it measures, built from code
load/          `gemlet load`
"""
