"""Readers of the daemon's status document.

reader.py     the document as structs;  without_daemon.py: the same from the driver alone
tables.py     as text
top.py        live
report.py     what a group used, waited for, and what would have helped
history.py    the recorded history as text and as a plot
web/          in a browser
metrics.py    for Prometheus
"""
