"""`gemlet profile`: measures what gemlet.serve.profiles.profile describes.

steps.py       what is measured of a model, and in which order: pure
repetition.py  how often; median and variation: pure
document.py    the profile file as it grows, and what of an older one still holds: pure
session.py     takes the steps of each model within a budget, and writes after each; the device is a protocol
stressors.py   three programs that do nothing but take one resource (torch)
together.py    several streams kept busy at the same time, and how fast each goes (torch)
gpu.py         the machine of measurer.py: a real GPU (torch)
taking.py      one step of one model
apart.py       the device of session.py, in a process of its own that never takes longer than it may
messages.py    what is said between apart.py and measurer.py
measurer.py    that process, in which the models run
guard.py       the process between them, which ends it with all that it has started
subjects.py    which models: built-in ones, or those of a model repository
progress.py    the bar on a terminal, lines elsewhere
"""
