"""Readers of the daemon's status document.

reader.py     the document as structs
tables.py     as text
top.py        live
history.py    the recorded history as text and as a plot
metrics.py    for Prometheus
"""
