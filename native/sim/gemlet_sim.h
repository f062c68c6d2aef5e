/* What tests may ask the simulated machine behind the driver's back: the truth. Exported by libcuda.so.1 and
 * libnvidia-ml.so.1 of the simulation; no real driver has these. All return 0, or -1 if there is no such device or no
 * simulated machine. None needs cuInit. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Device time the process has used so far, in nanoseconds, also after its death; 0 if it never used the device. */
int gemletSimDeviceTime(int device, unsigned long long pid, unsigned long long* nanoseconds);

/* Bytes of device memory charged to a live process, contexts included. */
int gemletSimMemory(int device, unsigned long long pid, unsigned long long* bytes);

/* Most bytes of device memory that were ever in use at the same moment, contexts included. */
int gemletSimMostMemory(int device, unsigned long long* bytes);

/* Time the multiprocessors worked, and context switches, since the machine was made. */
int gemletSimTotals(int device, unsigned long long* busy_nanoseconds, unsigned long long* switches);

/* Lets a device fall off the bus for every process (lost != 0), or come back. */
int gemletSimSetLost(int device, int lost);

#ifdef __cplusplus
}
#endif
