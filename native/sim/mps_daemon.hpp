// The MPS control daemon of the simulated machine: its files, its sockets, its end.
#pragma once

#include <memory>
#include <string>

namespace gemlet::sim {

class MpsDaemon {
  public:
    // Takes the pipe directory. Throws std::runtime_error with words for the user when another daemon has it or it
    // cannot be used.
    MpsDaemon();
    ~MpsDaemon();  // removes the files

    void announce();  // as this process, which is the one that stays
    void run();       // until told to end

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace gemlet::sim
