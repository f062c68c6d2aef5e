#include "server/inquiries.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace gemlet::server {

namespace {

constexpr size_t kMostThreads = 16;  // of one user

}  // namespace

struct Inquiries::State {
    struct Asked {
        uint64_t tag;
        pid_t pid;
    };
    struct User {
        std::deque<Asked> asked = {};
        size_t threads = 0;
    };
    std::mutex mutex;
    std::map<std::string, User> users;  // of which something is asked
    std::vector<Found> found;
    Descriptor wake;

    // With the mutex.
    void tell(uint64_t tag, std::optional<Look> look) {
        found.push_back({tag, look});
        const uint64_t one = 1;
        const ssize_t ignored = write(wake.get(), &one, sizeof one);
        (void)ignored;
    }

    void look_at_all(const std::string& who) {
        pthread_setname_np(pthread_self(), "gemlet-inquires");
        std::unique_lock lock(mutex);
        const auto user = users.find(who);  // stays while it has a thread
        while (!user->second.asked.empty()) {
            const Asked next = user->second.asked.front();
            user->second.asked.pop_front();
            lock.unlock();
            const Look look = look_at(next.pid);
            lock.lock();
            tell(next.tag, look);
        }
        if (--user->second.threads == 0) users.erase(user);
    }
};

Inquiries::Inquiries(int wake) : state_(std::make_shared<State>()) {
    state_->wake = Descriptor(fcntl(wake, F_DUPFD_CLOEXEC, 3));
    if (state_->wake.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Inquiries::ask(const std::string& who, uint64_t tag, pid_t pid) {
    const std::lock_guard lock(state_->mutex);
    const auto user = state_->users.try_emplace(who).first;
    auto& [asked, threads] = user->second;
    asked.push_back({tag, pid});
    if (threads >= kMostThreads) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    try {
        std::thread([state = state_, who] { state->look_at_all(who); }).detach();
        ++threads;
    } catch (const std::system_error&) {
        if (threads == 0) {
            state_->users.erase(user);
            state_->tell(tag, std::nullopt);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Inquiries::forget(uint64_t tag) {
    const std::lock_guard lock(state_->mutex);
    for (auto& [who, user] : state_->users)
        std::erase_if(user.asked, [&](const State::Asked& asked) { return asked.tag == tag; });
}

std::vector<Inquiries::Found> Inquiries::take() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->found, {});
}

}  // namespace gemlet::server
