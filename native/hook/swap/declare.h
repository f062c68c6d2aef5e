/* What a program (or a library in it, like the launcher's PyTorch hook) may tell of its movable memory: which bytes
   nobody will read again before they are written. They need not be copied when the memory leaves the device.

   Plain C, exported by the preloaded library. Found with `ctypes.CDLL(None)` (the library is preloaded, so its
   symbols are global); a process without the library, or with an older one, has no such symbols. All of it may be
   called from any thread, never fails loudly, needs no context and waits for nothing that takes long.

   Use, at the end of an iteration, by a thread that submits nothing meanwhile:

       int use = gemlet_iteration_ends();
       if (use == GEMLET_DEAD_WANTED || (use == GEMLET_DEAD_USEFUL && it is cheap)) {
           uint64_t ticket = gemlet_dead_begin();             // first,
           ... find out which blocks are unused ...           // then look,
           gemlet_declare_dead(ticket, starts, bytes, count); // then tell
       }

   What holds, whatever the caller does in between:

   - A ticket is good until the next submission of this process to the device (a kernel, a graph, a copy, a set, a
   word in stream order), from any thread. Each submission passes the gate of `native/hook/submit/move_gate.h`, and
   one that finds a ticket there takes it away before it goes to the driver. A declaration lapses with its ticket: at
   once, as a whole, and without anybody saying so. So:
       - a block that was allocated again after the caller looked loses nothing: until something is submitted there is
         nothing in it, and what is submitted ends the declaration;
       - a block that was allocated again between looking and telling: likewise, and telling then answers -1.
     There is no call to take a single block back, because there is nothing it could be needed for.
   - Memory is moved only behind the closed gate, when nobody is inside and nothing runs. A declaration is looked at
     there, and only there, so none can lapse while it is used.
   - Bytes that were declared dead and moved are undefined afterwards, as those of fresh memory are. All others are as
     they were. Ranges may be of any size and place: what is not this process's movable memory is left out, the parts
   of chunks that are not dead are copied, and ranges that overlap count once. Ends within a block of 2 MiB are kept
     exactly, to the byte.
   - The caller answers for one thing only: that nothing already submitted, and no graph that will be launched, reads
     what was in those bytes. Blocks of a graph's private pool, and blocks whose free waits for another stream
     (PyTorch: `active_pending_free`), are therefore not to be declared.
   - Two declarations with one ticket add up. A new ticket ends the declarations of the one before. */
#ifndef GEMLET_SWAP_DECLARE_H
#define GEMLET_SWAP_DECLARE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GEMLET_DEAD_USELESS = 0, /* no memory of this process can move, or everything fits: do nothing */
    GEMLET_DEAD_USEFUL =
        1, /* it shares a device on which not everything fits: it may be moved before the next call */
    GEMLET_DEAD_WANTED = 2, /* it is to move now, and the mover waits for this declaration (for a short while) */
};

/* Says that an iteration has ended; answers one of the above. Costs a few loads where nothing is to be done. A
   process that calls it regularly is moved at the end of an iteration where that is soon enough. */
int gemlet_iteration_ends(void);

/* A ticket, never 0, for all devices of the process. */
uint64_t gemlet_dead_begin(void);

/* `count` ranges of device addresses. Answers how many bytes of movable memory are now known to be dead; -1:
   something was submitted since the ticket was given, and nothing was taken. If memory is to move, submissions wait
   from here on, until it is back: declare with `count` 0 if nothing is dead. */
int64_t gemlet_declare_dead(uint64_t ticket, const uint64_t* starts, const uint64_t* bytes, uint64_t count);

/* Ends all declarations. */
void gemlet_declare_live(void);

#ifdef __cplusplus
}
#endif

#endif
