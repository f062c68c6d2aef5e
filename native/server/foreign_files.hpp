// Descriptors that come along with messages, of files that their senders chose.
//
// The process that closes the last descriptor of a file may have to wait for as long as its sender likes: a TCP
// connection waits for its peer (SO_LINGER), a memfd of many GiB gives each page back. It need not read the message
// for that; it is enough to close the socket where the message is.
#pragma once

#include <cstdint>
#include <vector>

#include "server/descriptor.hpp"

namespace gemlet::server {

// From now on the kernel refuses to send any to this socket, and to those accepted from it. False before Linux 6.16.
bool refuse_files(int socket);

// What would be received next from a socket that refuses none. Only what was looked at may be received: what comes
// after the look, or after an error (kEnd), may bring files again.
enum class Next : uint8_t { kNothing, kMessage, kFiles, kEnd };
Next next_from(int socket);

// Closes a socket that others sent to, whatever is unread there: if need be at the end of a thread, where the kernel
// waits for nothing.
void close_apart(int socket);

// Closes sockets that another process may have as well, and which are not shut down: it may be the first to close
// them, and this the last.
void close_shared_apart(const std::vector<int>& sockets);

using ForeignSocket = OwnedDescriptor<close_apart>;

}  // namespace gemlet::server
