"""Readers of the daemon's status document.

reader.py     the document as structs;  without_daemon.py: the same from the driver alone
columns.py    what each column means, and its cells, for text and live
tables.py     as text
top.py        live;  tree.py: its groups with their programs;  ending.py: the programs that it ends
report.py     what a group used, waited for, and what would have helped
trace.py      who ran and who waited, for Perfetto
history.py    the recorded history as text and as a plot
web/          in a browser
metrics.py    for Prometheus;  metrics_server.py: over HTTP
few_connections.py: what a server here has for all who may connect
"""
