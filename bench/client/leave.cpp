// A program that ends while work is queued: nothing waits for the device before exit().
#include <execinfo.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "program.hpp"

namespace {

// Says which thread it was. Threads of the hook block all signals, so one that dies of this dies without these words.
void say_where(int number) {
    char name[16] = {};
    prctl(PR_GET_NAME, name);
    constexpr char kWords[] = "client: a signal in the thread ";
    void* frames[32];
    bool said = write(STDERR_FILENO, kWords, sizeof kWords - 1) > 0;
    said = write(STDERR_FILENO, name, std::strlen(name)) > 0 && said;
    said = write(STDERR_FILENO, "\n", 1) > 0 && said;
    if (said) backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    raise(number);  // SA_RESETHAND: by default now
}

void watch_signals() {
    void* frame = nullptr;
    backtrace(&frame, 1);  // loads what it needs now
    struct sigaction action{};
    action.sa_handler = say_where;
    action.sa_flags = SA_RESETHAND | SA_NODEFER;
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) sigaction(number, &action, nullptr);
}

// What the driver answers while the program ends: its number in each handler, in the order in which these run.
void say_answer(const char* when) {
    std::fprintf(stderr, "order: %s: %d\n", when, int(cuCtxSynchronize()));
}

bool asked_for_order = false;

[[gnu::destructor]] void at_destructors() {
    if (asked_for_order) say_answer("destructor of the program");
}

int order(const Options& o) {
    asked_for_order = true;
    std::atexit([] { say_answer("handler from before cuInit"); });
    CHECK(cuInit(0));
    std::atexit([] { say_answer("handler from after cuInit"); });
    CUdevice device = 0;
    CUcontext context = nullptr;
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    std::atexit([] { say_answer("handler from after the first context"); });
    Program p(o);
    p.launch(o.kernel_us);
    std::exit(0);
}

}  // namespace

int leave(const Options& o) {
    const bool goes_on = o.how == "busy", waits = o.how == "waiting", by_thread = o.how == "thread";
    if (o.how == "order") return order(o);
    if (!goes_on && !waits && !by_thread && o.how != "queued") {
        std::fprintf(stderr, "client: --how is queued, busy, waiting, thread or order\n");
        return 2;
    }
    watch_signals();
    // Never destroyed: threads use them while the process ends.
    auto& stop = *new std::atomic<bool>{false};
    auto& launched = *new std::atomic<uint64_t>{0};
    auto& kept = *new std::vector<std::unique_ptr<Program>>;
    auto& threads = *new std::vector<std::thread>;
    const auto& options = *new Options(o);
    for (int i = 0; i < o.threads; ++i) kept.push_back(std::make_unique<Program>(options));
    const uint64_t end = wait_for_start(o) + uint64_t(o.seconds * 1e9);
    for (auto& each : kept)
        threads.emplace_back([&stop, &launched, &options, program = each.get()] {
            // One that goes on while the driver ends is refused.
            cuCtxSetCurrent(program->context());
            while (!stop.load() && program->try_launch(options.kernel_us) == CUDA_SUCCESS) launched.fetch_add(1);
        });
    sleep_until(end);
    if (!goes_on) {
        stop = true;
        for (auto& thread : threads) thread.join();
    }
    if (waits) {
        std::thread([program = kept[0].get()] { (void)cuStreamSynchronize(program->stream()); }).detach();
        sleep_until(now_ns() + 1'000'000);
    }
    std::printf("{\"launched\": %llu}\n", static_cast<unsigned long long>(launched.load()));
    if (by_thread) {
        std::thread([] { std::exit(0); }).detach();
        for (;;) (void)cuStreamSynchronize(kept[0]->stream());
    }
    std::exit(0);
}
