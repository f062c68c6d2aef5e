"""Serving in virtual time: the queues and the decisions of gemlet.serve, arrivals of gemlet.load, no GPU, no waiting.

simulator.py    queues and executors in virtual time
replanning.py   the controller's decisions in it
peak.py         the highest rate at which the objectives are met
"""
