"""Readers of the daemon's status document.

reader.py     the document as structs
tables.py     as text
top.py        live
metrics.py    for Prometheus
"""
