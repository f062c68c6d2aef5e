"""The way of a request through the server, whichever protocol it came by.

call.py          a request, checked, and why it may be refused
engine.py        from the queue to an executor and back
work.py          a batch on its way;  batch_tensors.py: the tensors of a batch
answers.py       the one answer of each request
waiting_room.py  how much a client and a model may have waiting
nested.py        requests that a model sends to others
waits.py         which batches wait for such requests, and would for ever;  relief.py: what is run then
faults.py        whose requests made a model raise, and share no batch with others
served.py        the models that requests may name
quarantine.py    which models rest, because executors died under them;  blame.py: of which requests an executor died
deaths.py        what becomes of the requests that a dead executor had
dispatcher.py    batching, early drop and routing in explicit time;  gpu_lets.py: where, and what they run
queue.py         one of its queues;  turns.py: whose request is next;  request.py: a request there
meetings.py      what may run on a device beside suspects
drops.py         refuses what was dropped, some of it at a time;  soon.py: does something once in the next turn
expectation.py   how long a batch will take, learned from those that ran
statistics.py    counters by model;  request_log.py: a line for each request

batch_tensors.py, dispatcher.py, gpu_lets.py, queue.py, turns.py, request.py, meetings.py, waiting_room.py, faults.py,
quarantine.py, blame.py, expectation.py, waits.py and relief.py are pure; the simulator runs the queues.
"""
