"""The devices of this machine.

device.py        what is known of a device: Device, DeviceInfo, DeviceProcess
nvml.py          where it comes from: device_inventory(), process_memory(uuid), and session() for more than one question
mps.py           NVIDIA's Multi-Process Service: Control, control_of(pipe_directory)
started.py       when a process was started, which the kernel may not say for long
green.py         green contexts: streams that run on some of a device's SMs
host_memory.py   how much of the host's memory swapped memory may take
"""
