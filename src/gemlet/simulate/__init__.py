"""Time sharing in virtual time: the real arbiter, modelled programs, no GPU and no waiting.

workload.py   what runs: groups, programs, the device
program.py    when a program has work for the device
client.py     a program and its hook: asks for the token;  counters.py: what it tells the arbiter
device.py     which contexts run, and how fast;  queue.py: the work of one context
timeline.py   the virtual clock
engine.py     the device, the clients and the arbiter in virtual time
host.py       several devices, and gangs;  collective.py: kernels that wait for each other across them
report.py     shares, waits, latencies

Everything that comes out of it is simulated, and says so.
"""
