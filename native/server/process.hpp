// What the kernel says of a process.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <string>

#include "server/descriptor.hpp"

namespace gemlet::server {

// A pidfd of the process that made the connection; none if that has ended, or the kernel does not say.
Descriptor process_of(int connection, pid_t pid);

// Names the process for as long as the machine runs, also one whose pid has no meaning here; 0: the kernel cannot.
uint64_t number_of(int pidfd);

// Whether it is in the pid namespace of this process. False of what is in a container, or cannot be told.
bool is_near(int pidfd, pid_t pid);

uint64_t ticks_since_boot();

// What may take for ever to find out (inquiries.hpp).
struct Look {
    uint64_t started = 0;  // in ticks since boot; 0 if there is none, or it has ended and nobody has reaped it
    // Names the program that the process runs: exec(2) changes it, and little else does. 0: unknown, for only some
    // may look.
    uint64_t image = 0;
};
Look look_at(pid_t pid);

// Its name, printable; empty if there is none.
std::string command_of(pid_t pid);

}  // namespace gemlet::server
