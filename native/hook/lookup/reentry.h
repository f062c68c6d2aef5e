// The driver may call its own exported symbols, which are ours now: such inner calls pass straight through, or one
// allocation would be counted twice and a lock taken twice.
#pragma once

namespace gemlet::hook {

class Reentry {
  public:
    Reentry() : outer_(inside) { inside = true; }
    ~Reentry() { inside = outer_; }
    Reentry(const Reentry&) = delete;
    Reentry& operator=(const Reentry&) = delete;

    bool nested() const { return outer_; }

  private:
    static inline thread_local constinit bool inside = false;
    const bool outer_;
};

}  // namespace gemlet::hook
