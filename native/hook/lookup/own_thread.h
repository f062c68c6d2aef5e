// Threads of the hook's own inside the program: the watcher of a device, the mover of its memory.
#pragma once

#include <pthread.h>
#include <sys/prctl.h>
#include <csignal>

#include "hook/lookup/driver_end.h"
#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

// What such a thread does first.
inline void begin_own_thread(const char* name) {
    thread_kind = ThreadKind::kHook;
    // Not pthread_setname_np: musl before 1.1.16 has none, and its loader would refuse the program.
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 1);
    // For the thread's whole life: its driver calls must not disturb a capture of the program's.
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    own().cuThreadExchangeStreamCaptureMode(&relaxed);
}

// The thread is never joined. False if the system allows no more threads.
inline bool start_own_thread(void* (*run)(void*), void* argument) {
    watch_driver_end_by_thread();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are the program's
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const bool started = pthread_create(&thread, &attributes, run, argument) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

}  // namespace gemlet::hook
