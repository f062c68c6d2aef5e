"""Time sharing in virtual time: the real arbiter, modelled programs, no GPU and no waiting.

workload.py   what runs: groups, programs, the device
program.py    when a program has work for the device
client.py     a program and its hook: asks for the token;  counters.py: what it tells the arbiter
device.py     which contexts run, and how fast;  queue.py: the work of one context
engine.py     the device, the clients and the arbiter in virtual time
report.py     shares, waits, latencies

Everything that comes out of it is simulated, and says so.
"""
