#include "batch.h"

#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "driver.hpp"

#define GEMBATCH_EXPORT __attribute__((visibility("default")))

namespace {

using gemlet::batch::Driver;
using gemlet::batch::driver;

constexpr uint32_t kTurnsBetweenChecks = 64;  // at the clock: some microseconds
constexpr uint64_t kSpinNs =
    5'000'000;  // most batches are shorter; a processor for each gpu-let, if there are enough
constexpr long kNapNs = 20'000;
constexpr uint64_t kAskNs = 2'000'000;

// The context is current as long as this lives. Threads of a server come without one; torch's have the right one.
class Current {
  public:
    Current(const Driver& cuda, CUcontext wanted) noexcept : cuda_(cuda) {
        CUcontext now = nullptr;
        result_ = cuda_.current(&now);
        if (result_ != CUDA_SUCCESS || now == wanted) return;
        result_ = cuda_.push(wanted);
        pushed_ = result_ == CUDA_SUCCESS;
    }
    ~Current() {
        CUcontext popped = nullptr;
        if (pushed_) cuda_.pop(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    CUresult result() const noexcept { return result_; }

  private:
    const Driver& cuda_;
    CUresult result_;
    bool pushed_ = false;
};

CUresult submit(const Driver& cuda, gembatch_batch& batch, CUstream stream) noexcept {
    batch.step = GEMBATCH_INPUT;
    for (batch.place = 0; batch.place < batch.input_count; ++batch.place) {
        const gembatch_input& input = batch.inputs[batch.place];
        if (input.bytes == 0) continue;
        if (input.source != nullptr) std::memcpy(input.staging, input.source, input.bytes);
        const CUresult result = cuda.to_device(input.device, input.staging, input.bytes, stream);
        if (result != CUDA_SUCCESS) return result;
    }
    batch.step = GEMBATCH_LAUNCH;
    batch.place = 0;
    const CUresult launched = cuda.launch(static_cast<CUgraphExec>(batch.graph), stream);
    if (launched != CUDA_SUCCESS) return launched;
    batch.step = GEMBATCH_OUTPUT;
    for (batch.place = 0; batch.place < batch.output_count; ++batch.place) {
        const gembatch_output& output = batch.outputs[batch.place];
        if (output.bytes == 0) continue;
        const CUresult result = cuda.to_host(output.host, output.device, output.bytes, stream);
        if (result != CUDA_SUCCESS) return result;
    }
    batch.step = GEMBATCH_NOTHING;
    batch.place = 0;
    return CUDA_SUCCESS;
}

uint64_t now_ns() noexcept {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

std::atomic<int> spinning{0};  // threads of this process

int processors() noexcept {
    cpu_set_t mine;
    return sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : CPU_SETSIZE;
}

// Whether this thread may spin: one processor is left to those that have work. Others nap from the beginning.
class Spinning {
  public:
    Spinning() noexcept : allowed_(++spinning < processors()) {
        if (!allowed_) --spinning;
    }
    ~Spinning() {
        if (allowed_) --spinning;
    }
    Spinning(const Spinning&) = delete;
    Spinning& operator=(const Spinning&) = delete;
    bool allowed() const noexcept { return allowed_; }

  private:
    const bool allowed_;
};

// Until the device has written the ticket. A device that failed never does, so the driver is asked now and then.
CUresult watch(const Driver& cuda, const uint32_t* done, uint32_t ticket, CUstream stream) noexcept {
    const Spinning here;
    const uint64_t spin = here.allowed() ? kSpinNs : 0;
    const uint64_t began = now_ns();
    uint64_t asked = began;
    for (uint32_t turn = 1; __atomic_load_n(done, __ATOMIC_ACQUIRE) != ticket; ++turn) {
        pause();
        if (turn % kTurnsBetweenChecks != 0) continue;
        const uint64_t now = now_ns();
        if (now - began >= spin) {
            const timespec nap{0, kNapNs};
            nanosleep(&nap, nullptr);
        }
        if (now - asked < kAskNs) continue;
        asked = now;
        const CUresult state = cuda.query(stream);
        if (state != CUDA_ERROR_NOT_READY) return state;
    }
    return CUDA_SUCCESS;
}

CUresult finish(const Driver& cuda, gembatch_batch& batch, CUstream stream) noexcept {
    if (batch.done == nullptr) return cuda.wait(stream);
    const uint32_t ticket = ++batch.ticket;
    // Page-locked memory has one address for host and device.
    const auto where = reinterpret_cast<CUdeviceptr>(batch.done);
    if (cuda.write(stream, where, ticket, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS) return cuda.wait(stream);
    return watch(cuda, batch.done, ticket, stream);
}

void say(char* text, uint64_t room, const char* what, const char* why) noexcept {
    if (text != nullptr && room > 0) std::snprintf(text, room, "%s%s%s", what, *why ? ": " : "", why);
}

}  // namespace

extern "C" {

GEMBATCH_EXPORT int gembatch_open(int device, void** context, char* missing, uint64_t room) {
    const Driver& cuda = driver();
    if (cuda.missing != nullptr) {
        say(missing, room, cuda.missing, "");
        return CUDA_ERROR_NOT_FOUND;
    }
    CUdevice handle = 0;
    CUcontext primary = nullptr;
    const char* step = "cuInit";
    CUresult result = cuda.init(0);
    if (result == CUDA_SUCCESS) {
        step = "cuDeviceGet";
        result = cuda.device_get(&handle, device);
    }
    if (result == CUDA_SUCCESS) {
        step = "cuDevicePrimaryCtxRetain";
        result = cuda.retain(&primary, handle);
    }
    if (result != CUDA_SUCCESS) {
        say(missing, room, step, gembatch_words(result));
        return result;
    }
    *context = primary;
    return CUDA_SUCCESS;
}

GEMBATCH_EXPORT int gembatch_run(gembatch_batch* batch) {
    const Driver& cuda = driver();
    const auto stream = static_cast<CUstream>(batch->stream);
    batch->step = GEMBATCH_CONTEXT;
    batch->place = 0;
    const Current current(cuda, static_cast<CUcontext>(batch->context));
    if (current.result() != CUDA_SUCCESS) return current.result();
    const CUresult submitted = submit(cuda, *batch, stream);
    if (submitted != CUDA_SUCCESS) {
        cuda.wait(stream);  // what was submitted before it uses the memory
        return submitted;
    }
    const CUresult waited = finish(cuda, *batch, stream);
    if (waited != CUDA_SUCCESS) batch->step = GEMBATCH_WAIT;
    return waited;
}

GEMBATCH_EXPORT const char* gembatch_words(int result) {
    const char* words = nullptr;
    driver().words(static_cast<CUresult>(result), &words);
    return words != nullptr ? words : "an error that the driver does not know";
}

}  // extern "C"
