// Events that lower rooms must report to memory that can move to the host. hook/swap/lifecycle.cpp handles them;
// without such memory each is one test of a flag.
#pragma once

#include "hook/lookup/cuda_api.h"

namespace gemlet::hook {

struct Attachment;
struct Device;

void swap_attached(Device& device, const Attachment& attachment);  // the daemon governs the device (anew)
void swap_device_made(Device& device);                             // ... or does not, as it is used first
void swap_lost(Device& device);   // no daemon does, but a successor may be there already: what is away stays away
void swap_alone(Device& device);  // there is none
void swap_tend(Device& device);   // now and then, while a daemon governs the device
void swap_context_destroying(CUcontext context);
void swap_capture_begins();   // returns when no memory moves; none moves until the next
void swap_capture_counted();  // ... call: the capture is counted by now
void swap_in_child();

}  // namespace gemlet::hook
