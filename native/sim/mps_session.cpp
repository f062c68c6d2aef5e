#include "mps_session.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "clock.hpp"
#include "device_identity.hpp"
#include "faults.hpp"
#include "mps_pipe.hpp"
#include "work.hpp"

namespace gemlet::sim {
namespace {

constexpr Nanoseconds kListenPeriod = 1'000'000;

struct Session {
    Descriptor server;
    double limit = 100;  // percent; the server's, when we connected
    bool below_normal = false;
    std::optional<double> percentage;  // of the process; unless it is each context's own
    std::mutex mutex;
    std::map<uint32_t, unsigned> contexts;  // by device
    std::atomic<Nanoseconds> heard{0};
};

std::atomic<Session*> session{nullptr};  // never destroyed: threads may outlive main()

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::optional<double> wanted_percentage() {
    return parse_percentage(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

void read_priority(Session& into, int of_server) {
    const std::string own = variable("CUDA_MPS_CLIENT_PRIORITY");
    into.below_normal = own.empty() ? of_server == 1 : own == "1";
}

// Nothing of this process runs any more; its waiters look at mps_trouble().
void give_up(Session& s, int code) {
    stick(code);
    const std::lock_guard guard(s.mutex);
    for (const auto& [device, count] : s.contexts) devices()[device]->abandon_work();
}

void listen(Session& s) {
    const Nanoseconds now = monotonic_now();
    Nanoseconds before = s.heard.load(std::memory_order_relaxed);
    if (now < before + kListenPeriod || !s.heard.compare_exchange_strong(before, now)) return;
    errno = 0;
    const auto message = mps_receive(s.server.get(), /*wait=*/false);
    if (!message) {
        if (errno != EAGAIN && errno != EWOULDBLOCK) give_up(s, CUDA_ERROR_MPS_RPC_FAILURE);
        return;
    }
    std::istringstream words(*message);
    std::string verb, uuid;
    int code = 0;
    words >> verb >> uuid >> code;
    if (verb == "terminate") give_up(s, CUDA_ERROR_MPS_CLIENT_TERMINATED);
    if (verb == "fault") give_up(s, code);
}

}  // namespace

CUresult mps_connect() {
    static std::mutex once;
    static bool looked = false;
    const std::lock_guard guard(once);
    if (looked) return CUDA_SUCCESS;
    Descriptor server = mps_connect(mps_pipe_directory(), kMpsMarker);
    if (server.valid() && mps_send(server.get(), "client " + canonical_folder(Machine::get().folder()))) {
        std::istringstream words(mps_receive(server.get()).value_or(""));
        std::string verb;
        int pid = 0, priority = 0, refusal = 0;
        double limit = 100;
        words >> verb;
        if (verb == "refused") {
            words >> refusal;
            return static_cast<CUresult>(refusal);
        }
        if (verb == "welcome") {
            words >> pid >> limit >> priority;
            auto* made = new Session;
            made->server = std::move(server);
            made->limit = limit;
            read_priority(*made, priority);
            if (variable("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING") != "1")
                made->percentage = wanted_percentage().value_or(100);
            Dispatcher::get().give_up_when([] { return mps_trouble() != 0; });
            session = made;
        }
    }
    looked = true;
    return CUDA_SUCCESS;
}

bool mps_client() {
    return session.load(std::memory_order_acquire) != nullptr;
}

MpsShare mps_share(const Device& device, unsigned wanted) {
    const int all = device.profile().attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    const Session* s = session.load(std::memory_order_acquire);
    if (s == nullptr) return {all, 0, false};
    const double percentage = std::min(s->limit, s->percentage ? *s->percentage : wanted_percentage().value_or(100));
    // A part of a multiprocessor counts as one; a rounding error of the percentage does not.
    int count = std::clamp(static_cast<int>(std::ceil(all * percentage / 100 - 1e-6)), 1, all);
    if (wanted > 0) count = std::min(count, static_cast<int>(std::min(wanted, static_cast<unsigned>(all))));
    const auto parts = static_cast<uint32_t>(static_cast<uint64_t>(kWhole) * static_cast<uint64_t>(count) /
                                             static_cast<uint64_t>(all));
    return {count, std::max(parts, 1u), s->below_normal};
}

void mps_context_opened(const Device& device) {
    Session* s = session.load(std::memory_order_acquire);
    if (s == nullptr) return;
    const std::lock_guard guard(s->mutex);
    if (s->contexts[device.index()]++ == 0) mps_send(s->server.get(), "device " + device_uuid_text(device));
}

void mps_context_closed(const Device& device) {
    Session* s = session.load(std::memory_order_acquire);
    if (s == nullptr) return;
    const std::lock_guard guard(s->mutex);
    if (--s->contexts[device.index()] > 0) return;
    s->contexts.erase(device.index());
    mps_send(s->server.get(), "leave " + device_uuid_text(device));
}

int mps_trouble() {
    Session* s = session.load(std::memory_order_acquire);
    if (s == nullptr) return 0;
    if (sticky_fault() == 0) listen(*s);
    return sticky_fault();
}

void mps_report_fault(int code) {
    Session* s = session.load(std::memory_order_acquire);
    if (s == nullptr) return;
    {
        const std::lock_guard guard(s->mutex);
        for (const auto& [device, count] : s->contexts)
            mps_send(s->server.get(), "fault " + device_uuid_text(*devices()[device]) + " " + std::to_string(code));
    }
    give_up(*s, code);
}

}  // namespace gemlet::sim
