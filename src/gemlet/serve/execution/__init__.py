"""Executors: processes that run models on gpu-lets.

backend.py     what a backend is, and what it is given
backends/      one file a backend
worker.py      the process;  protocol.py: what it and the server say;  arena.py: the memory they share
process_settings.py    what a model may change there for all others
whole_device.py    a process under a fraction of MPS is told the size of the whole device
executor.py    the server's side of one process;  loan.py: how long outputs stay in that memory
copying.py     a thread that copies large inputs into that memory
printed.py     what such a process prints, passed on to the server's standard error, so many lines a minute
device.py      the executors of one device, started again when they die
remote.py      an executor on another machine, over TCP;  hosting.py starts it there, ray_placement.py finds the machine
graphed.py     a model as CUDA graphs: capturing.py makes and checks one, batch_call.py runs one in a single C call
python_host.py runs the models of triton/, which were written for Triton's Python backend
model_file.py, torch_models.py    models of a repository as Python modules, and as something a stream can run
other_runtimes.py    ONNX Runtime and TensorRT on a GPU;  onnx_model.py: a session as a function
warm_up.py     batches before the first request
placement.py, parts.py    which SMs a gpu-let gets; streams on them
fair_lock.py   a lock with a queue
"""
