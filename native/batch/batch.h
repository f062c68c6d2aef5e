/* One batch of a model, from host to host, as one call: libgembatch.so.1. `gemlet serve` calls it with ctypes, which
   gives up the interpreter's lock once for the whole batch. Python's side is
   src/gemlet/serve/execution/batch_call.py; the structures below are declared there once more.

   Plain C. Any thread may call it; two threads need two batches, as what is in one is used until the call returns. */
#ifndef GEMLET_BATCH_H
#define GEMLET_BATCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What goes to the device before the graph runs. */
struct gembatch_input {
    const void* source; /* `bytes` bytes; null where `staging` holds them already */
    void* staging;      /* page-locked memory of the host */
    uint64_t device;    /* CUdeviceptr: what the graph reads */
    uint64_t bytes;
};

/* What comes back after it. */
struct gembatch_output {
    uint64_t device; /* CUdeviceptr: what the graph wrote */
    void* host;      /* page-locked */
    uint64_t bytes;
};

enum gembatch_step {
    GEMBATCH_NOTHING = 0,
    GEMBATCH_CONTEXT = 1, /* making the context current */
    GEMBATCH_INPUT = 2,   /* copying input `place` to the device */
    GEMBATCH_LAUNCH = 3,
    GEMBATCH_OUTPUT = 4, /* copying output `place` to the host */
    GEMBATCH_WAIT = 5,   /* waiting for the stream: also what went wrong on the device */
};

struct gembatch_batch {
    void* context; /* CUcontext, as gembatch_open gave it */
    void* stream;  /* CUstream */
    void* graph;   /* CUgraphExec */
    const struct gembatch_input* inputs;
    const struct gembatch_output* outputs;
    uint32_t* done; /* a word of page-locked memory for the device to say that it is done; null: ask the driver */
    uint32_t input_count;
    uint32_t output_count;
    uint32_t ticket; /* the call's own: what the device writes next */
    uint32_t step;   /* out, where gembatch_run fails: gembatch_step */
    uint32_t place;  /* out: of which input or output */
};

/* Finds the driver (once a process) and the primary context of a device, which is the one that CUDA's runtime uses.
   The context stays retained until the process ends. 0; else `missing` says, in at most `room` bytes, what there is
   not. */
int gembatch_open(int device, void** context, char* missing, uint64_t room);

/* Copies, launches, copies back and waits. With `done` the thread watches that word and leaves the driver alone while
   it waits: a wait inside the driver holds its locks, and keeps out threads that capture a graph or allocate. It
   spins some milliseconds while fewer threads of the process do so than it has processors, and naps otherwise. The
   calling thread may have any context or none; it has the same afterwards. 0, or the CUresult of the first step that
   failed. Either way nothing of the batch runs any more when it returns, unless waiting itself failed. */
int gembatch_run(struct gembatch_batch* batch);

/* What a CUresult means, in the driver's words. Needs a gembatch_open that succeeded. */
const char* gembatch_words(int result);

#ifdef __cplusplus
}
#endif

#endif
