"""Serving models on gpu-lets: profiles, plans, queues, and a simulator that runs the same queues in virtual time.

profiles.py    latency by (SM share, batch), memory, interference vectors; surface.py fills what was not measured
modelled.py    profiles computed from data sheets, and marked so
planner/       which model on which gpu-let: pure, one file a policy
queue.py       batching, early drop and routing, driven by explicit time
arrivals.py    when requests come
simulator.py   queue.py in virtual time
glet_files.py  rates.csv and ModelList.txt of glet; demand_file.py our own
files.py       the only place that opens files
picture.py     a plan as SVG and as text
"""
