"""What is known of a model on a device: latency by (SM share, batch), memory, interference.

profile.py     profiles as text and as values
kinds.py       profiles of several kinds of device, and which device is of which
surface.py     what lies between the anchors of a profile
ladder.py      for which batches a model is made ready
vectors.py     sensitivity and pressure from probes
modelled.py    profiles computed from data sheets, and marked so
measured/      profiles that are part of gemlet, by name
profile_files.py    reads either
learned.py     profiles from the batches of a server
variation.py   how batches of one size differ
"""
