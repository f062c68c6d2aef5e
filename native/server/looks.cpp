#include "server/looks.hpp"

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

struct Looks::State {
    struct Asked {
        uint64_t tag;
        pid_t pid;
    };
    std::mutex mutex;
    std::map<std::string, std::deque<Asked>> asked;  // by user; each has a thread
    std::vector<Found> found;
    Descriptor wake;

    // With the mutex.
    void tell(uint64_t tag, Look look) {
        found.push_back({tag, std::move(look)});
        const uint64_t one = 1;
        const ssize_t ignored = write(wake.get(), &one, sizeof one);
        (void)ignored;
    }

    void look_at_all(const std::string& who) {
        pthread_setname_np(pthread_self(), "gemlet-looks");
        std::unique_lock lock(mutex);
        const auto theirs = asked.find(who);
        while (!theirs->second.empty()) {
            const Asked next = theirs->second.front();
            lock.unlock();
            Look look = look_at(next.pid);
            lock.lock();
            theirs->second.pop_front();
            tell(next.tag, std::move(look));
        }
        asked.erase(theirs);
    }
};

Looks::Looks(int wake) : state_(std::make_shared<State>()) {
    state_->wake = Descriptor(fcntl(wake, F_DUPFD_CLOEXEC, 3));
    if (state_->wake.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Looks::ask(const std::string& who, uint64_t tag, pid_t pid) {
    const std::lock_guard lock(state_->mutex);
    const auto [theirs, is_new] = state_->asked.try_emplace(who);
    theirs->second.push_back({tag, pid});
    if (!is_new) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    try {
        std::thread([state = state_, who] { state->look_at_all(who); }).detach();
    } catch (const std::system_error&) {
        state_->asked.erase(theirs);
        state_->tell(tag, {});
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::vector<Looks::Found> Looks::take() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->found, {});
}

}  // namespace gemlet::server
