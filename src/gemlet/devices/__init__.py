"""The devices of this machine.

device.py   what is known of a device: Device, DeviceInfo, DeviceProcess
mps.py      NVIDIA's Multi-Process Service: Control, control_of(pipe_directory)
nvml.py     where it comes from: device_inventory(), process_memory(uuid), and session() for more than one question
"""
