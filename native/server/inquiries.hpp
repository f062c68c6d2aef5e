// Looks at processes, beside the server's thread. The kernel lets nobody look at a program while it is in exec(2),
// and there a program may stay for as long as it likes: it closes files, and their file system may be its own. So
// each user's processes are looked at in a few threads of their own: who lets them wait keeps nobody waiting but
// itself.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/process.hpp"

namespace gemlet::server {

class Inquiries {
  public:
    struct Found {
        uint64_t tag;
        std::optional<Look> look;  // none: the system allows no thread
    };

    // `wake`: an eventfd, written to when there is something to take.
    explicit Inquiries(int wake);  // throws std::system_error

    // `who`: whose process it is.
    void ask(const std::string& who, uint64_t tag, pid_t pid);
    // Nothing will be found for `tag`, unless a thread is looking or has looked already. Whatever has gone leaves
    // nothing behind threads that wait for ever.
    void forget(uint64_t tag);
    std::vector<Found> take();

  private:
    struct State;
    std::shared_ptr<State> state_;  // of threads, too, which may outlive the server
};

}  // namespace gemlet::server
