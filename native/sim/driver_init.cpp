// Initialisation, errors, version: what works before there is a device.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "graph.hpp"
#include "handles.hpp"
#include "mps_session.hpp"
#include "visible_devices.hpp"

namespace gemlet::sim {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};

void note_fork() {
    if (initialised) forked = true;
}

// The driver ends in a handler that cuInit registers, as the card's does: from then on it refuses all calls.
std::atomic<bool> torn_down{false};
std::atomic<int> calls_of_hook{0};
std::atomic<const char*> last_of_hook{""};

[[noreturn]] void die_of_hook(const char* when) {
    std::fprintf(stderr, "gemlet-sim: a thread of the hook was in %s %s\n", last_of_hook.load(), when);
    std::abort();
}

void tear_down() {
    torn_down = true;
    if (calls_of_hook > 0) die_of_hook("while the driver was torn down");
}

void tear_down_at_exit() {
    static pid_t process;  // a forked child inherits the handler, and has no driver
    static std::atomic<bool> once{false};
    if (once.exchange(true)) return;
    process = getpid();
    std::atexit([] {
        if (getpid() == process) tear_down();
    });
}

// Such threads block all signals, and have names that a program's may have, too.
bool is_like_hooks_thread() {
    char name[16] = {};
    // glibc has gettid() since 2.30, and wheels want 2.28.
    if (syscall(SYS_gettid) == getpid() || prctl(PR_GET_NAME, name) != 0) return false;
    if (std::strcmp(name, "gemlet") != 0 && std::strcmp(name, "gemlet-mover") != 0) return false;
    sigset_t blocked;
    return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 1 &&
           sigismember(&blocked, SIGSEGV) == 1;
}

}  // namespace

bool CallOfHook::is_hooks_thread() {
    static thread_local const bool it_is = is_like_hooks_thread();
    return it_is;
}

void CallOfHook::begin(const char* name) {
    ++calls_of_hook;
    last_of_hook = name;
    if (torn_down) die_of_hook("after the driver was torn down");
}

void CallOfHook::end() {
    --calls_of_hook;
}

void CallOfHook::look_at(CUresult code) {
    if (code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_CONTEXT ||
        code == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        die_of_hook("with a handle of what is gone");
}

thread_local bool PerThreadDefaultStream::active_ = false;

CUresult admit(Needs needs) {
    if (needs == Needs::kNothing) return CUDA_SUCCESS;
    if (!initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
    if (torn_down.load(std::memory_order_relaxed)) return CUDA_ERROR_DEINITIALIZED;
    // Contexts do not survive fork(2): the child's driver is not initialised and cannot be.
    if (forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    if (const int trouble = mps_trouble(); trouble != 0) return static_cast<CUresult>(trouble);
    return static_cast<CUresult>(sticky_fault());
}

Device& device_of(CUdevice ordinal) {
    const auto& shown = visible_devices();
    check(ordinal >= 0 && static_cast<size_t>(ordinal) < shown.size(), CUDA_ERROR_INVALID_DEVICE);
    return *devices()[static_cast<size_t>(shown[static_cast<size_t>(ordinal)])];
}

}  // namespace gemlet::sim

using namespace gemlet::sim;

namespace {
struct ErrorText {
    CUresult code;
    const char* name;
    const char* text;
};
constexpr ErrorText kErrors[] = {
#define GEMLET_SIM_ERROR(NAME, TEXT) {NAME, #NAME, TEXT},
#include "errors.def"
#undef GEMLET_SIM_ERROR
};

const ErrorText* find_error(CUresult code) {
    for (const ErrorText& error : kErrors)
        if (error.code == code) return &error;
    return nullptr;
}
}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
    return api(
        __func__,
        [&]() -> CUresult {
            check(flags == 0);
            check(!forked, CUDA_ERROR_NOT_INITIALIZED);
            check(!torn_down, CUDA_ERROR_DEINITIALIZED);
            try {
                if (visible_devices().empty()) return CUDA_ERROR_NO_DEVICE;
            } catch (const std::runtime_error& error) {
                std::fprintf(stderr, "gemlet-sim: no simulated machine: %s\n", error.what());
                return CUDA_ERROR_NO_DEVICE;
            }
            if (const CUresult refused = mps_connect(); refused != CUDA_SUCCESS) return refused;
            static const int once = pthread_atfork(nullptr, nullptr, note_fork);
            (void)once;
            tear_down_at_exit();
            initialised.store(true, std::memory_order_release);
            return static_cast<CUresult>(sticky_fault());
        },
        Needs::kNothing);
}

CUresult cuDriverGetVersion(int* version) {
    return api(
        __func__,
        [&] {
            check(version != nullptr);
            *version = 13000;
        },
        Needs::kNothing);
}

CUresult cuGetErrorName(CUresult code, const char** name) {
    return api(
        __func__,
        [&] {
            check(name != nullptr);
            const ErrorText* error = find_error(code);
            *name = error != nullptr ? error->name : nullptr;
            check(error != nullptr);
        },
        Needs::kNothing);
}

CUresult cuGetErrorString(CUresult code, const char** text) {
    return api(
        __func__,
        [&] {
            check(text != nullptr);
            const ErrorText* error = find_error(code);
            *text = error != nullptr ? error->text : nullptr;
            check(error != nullptr);
        },
        Needs::kNothing);
}

// The runtime library's private tables are undocumented, so there are none here: programs of the driver API only.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
    return api(
        __func__,
        [&] {
            if (table != nullptr) *table = nullptr;
            return CUDA_ERROR_NOT_SUPPORTED;
        },
        Needs::kNothing);
}

}  // extern "C"
