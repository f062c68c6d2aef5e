"""Gpu-lets under construction, for every policy.

draft.py         the one judgement whether a device can carry its gpu-lets
timing.py        latency and capacity by (model, size);  cycle.py: several models by turns on one gpu-let
interference.py  what neighbours cost;  linear.py: the same by glet's fitted line
packing.py improve.py simplify.py    moves
pool.py          gpu-lets that serve the same models, and the bursts they sustain;  pooling.py: where they are taken
"""
