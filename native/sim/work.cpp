#include "work.hpp"

#include <algorithm>
#include <chrono>

#include "schedule.hpp"

namespace gemlet::sim {
namespace {

// Copies go in pieces, so that those of several streams and processes share an engine, and a dead process's transfer
// does not hold it for long.
constexpr uint64_t kCopyChunk = 16u << 20;
constexpr Nanoseconds kPollPeriod = 50'000;
// Nobody knows when another process submits or dies, and turns are remembered only for a while.
constexpr Nanoseconds kLookAgain = 10'000'000;
// A full queue lets its launcher go on when this much work is done, not after every kernel.
constexpr uint64_t kRoom = 200'000;

Nanoseconds latest(const Queue& queue, const Op& op) {
    Nanoseconds t = std::max(op.ready, queue.last_finish);
    for (const OpRef& before : op.after)
        if (before->done()) t = std::max(t, before->finish);
    return t;
}

bool all_done(const std::vector<OpRef>& ops) {
    return std::all_of(ops.begin(), ops.end(), [](const OpRef& op) { return op->done(); });
}

}  // namespace

Dispatcher& Dispatcher::get() {
    static auto* dispatcher = new Dispatcher;  // never destroyed: the executor may outlive main()
    return *dispatcher;
}

void Dispatcher::enqueue(const QueueRef& queue, OpRef op) {
    Lock lock(mutex_);
    wait_for_room(queue, lock);
    append(queue, std::move(op), monotonic_now());
}

void Dispatcher::enqueue(const QueueRef& queue, std::vector<OpRef>&& ops) {
    Lock lock(mutex_);
    wait_for_room(queue, lock);
    const Nanoseconds now = monotonic_now();
    for (size_t i = 0; i < ops.size(); ++i) {
        ops[i]->counted = i == 0;  // a graph takes one place
        append(queue, std::move(ops[i]), now);
    }
}

void Dispatcher::append(const QueueRef& ref, OpRef&& op, Nanoseconds now) {
    Queue& queue = *ref;
    const bool quiet = !needs_attention(queue);
    op->ready = now;
    op->lane = queue.lane.get();
    op->queue = ref;
    queue.acting_ops += op->acts() ? 1 : 0;
    queue.counted += op->counted ? 1 : 0;
    queue.tail = op;
    queue.ops.push_back(std::move(op));
    if (!queue.active) {
        queue.active = true;
        active_.push_back(ref);
    }
    Lock none;  // a launcher carries out no effects, so nothing unlocks
    settle(queue, Role::kLauncher, /*may_act=*/false, none);
    if (needs_attention(queue) && (quiet || queue.ops.front()->kind != OpKind::kKernel)) kick(executor_);
}

void Dispatcher::wait_for_room(const QueueRef& queue, Lock& lock) {
    const size_t depth = queue->lane->device->profile().queue_depth;
    while (queue->counted >= depth) {
        pump(Role::kWaiter, queue.get(), lock);
        if (queue->counted < depth) return;
        size_t last = 0;
        const uint64_t enough = queue->lane->view.executed + kRoom;
        while (last + 1 < queue->ordered && queue->ops[last + 1]->end_work <= enough) ++last;
        const OpRef op = queue->ops[last];
        if (!wait_locked(op, queue, lock)) return;
    }
}

bool Dispatcher::needs_attention(const Queue& queue) const {
    return queue.acting_ops > 0 || queue.ordered < queue.ops.size();
}

// --- progress ----------------------------------------------------------------------------------------------------

// Hands to the device what only has to wait for work that it executes earlier anyway.
bool Dispatcher::order(Queue& queue) {
    bool progressed = false;
    while (queue.ordered < queue.ops.size()) {
        Op& op = *queue.ops[queue.ordered];
        if (queue.ordered > 0 && queue.ops[queue.ordered - 1]->poll) break;  // nobody knows how long that one takes
        if (op.kind != OpKind::kMarker && op.kind != OpKind::kKernel) break;
        uint64_t end = queue.ordered > 0 ? queue.ops[queue.ordered - 1]->end_work : 0;
        bool possible = true;
        for (const OpRef& before : op.after) {
            if (before->done()) continue;
            possible = possible && before->ordered && before->lane == op.lane && !before->poll;
            end = std::max(end, before->end_work);
        }
        if (!possible) break;
        op.end_work = end;
        if (op.kind == OpKind::kKernel) {
            op.end_work =
                op.lane->device->submit(op.lane->channel, op.cost, op.width, latest(queue, op), op.lane->view);
            op.state = OpState::kSubmitted;
        }
        op.ordered = true;
        ++queue.ordered;
        progressed = true;
    }
    return progressed;
}

void Dispatcher::pop(Queue& queue, Nanoseconds finish) {
    const OpRef op = std::move(queue.ops.front());
    queue.ops.pop_front();
    if (queue.ordered > 0) --queue.ordered;
    queue.acting_ops -= op->acts() ? 1 : 0;
    queue.counted -= op->counted ? 1 : 0;
    queue.last_finish = op->finish = finish;
    op->state = OpState::kDone;
    op->after.clear();
    op->effect = nullptr;
    op->poll = nullptr;
    if (waiters_ > 0) progress_.notify_all();
}

namespace {
thread_local bool host_function_running = false;
}
bool in_host_function() {
    return host_function_running;
}

void Dispatcher::act(const OpRef& op, uint64_t from, uint64_t bytes, Lock& lock) {
    if (!op->effect) return;
    op->state = OpState::kActing;
    lock.unlock();
    host_function_running = op->kind == OpKind::kHost;
    op->effect(from, bytes);
    host_function_running = false;
    lock.lock();
    op->state = OpState::kSubmitted;
    if (waiters_ > 0) progress_.notify_all();
}

// Whether a kernel that waits for others still does: the device works for it some time more.
bool Dispatcher::goes_on(Op& op) {
    if (op.poll()) return false;
    const Nanoseconds since = schedule_time_of(op.lane->view.channel, op.end_work);
    op.end_work = op.lane->device->submit(op.lane->channel, op.cost, op.width, since, op.lane->view);
    return true;
}

// Something is due that this thread must not do itself.
bool Dispatcher::leave_to_executor(const Queue& queue, Role role) {
    if (role != Role::kExecutor && queue.waiters == 0) kick(executor_);
    return false;
}

bool Dispatcher::finish_front(Queue& queue, Role role, bool may_act, Lock& lock) {
    const OpRef op = queue.ops.front();
    if (op->state == OpState::kActing || !all_done(op->after)) return false;
    switch (op->kind) {
        case OpKind::kMarker:
            pop(queue, latest(queue, *op));
            return true;
        case OpKind::kKernel: {
            if (op->state != OpState::kSubmitted || op->lane->view.executed < op->end_work) return false;
            if ((op->effect || op->poll) && !may_act) return leave_to_executor(queue, role);
            if (op->poll && goes_on(*op)) return false;
            const Nanoseconds finish = schedule_time_of(op->lane->view.channel, op->end_work);
            act(op, 0, op->cost, lock);
            pop(queue, std::max(finish, queue.last_finish));
            return true;
        }
        case OpKind::kToDevice:
        case OpKind::kToHost: {
            if (op->state == OpState::kWaiting) {
                if (!may_act) return leave_to_executor(queue, role);
                const uint64_t bytes = op->whole ? op->cost : std::min(op->cost - op->moved, kCopyChunk);
                const Nanoseconds ready = op->moved > 0 ? op->finish : latest(queue, *op);
                op->finish =
                    op->lane->device->copy(op->kind == OpKind::kToDevice ? 0 : 1, bytes, op->moved == 0, ready);
                op->state = OpState::kSubmitted;
                const uint64_t from = op->moved;
                op->moved += bytes;
                // The bytes move while the modelled engine does: this host is slower than the engine.
                act(op, from, bytes, lock);
            }
            if (monotonic_now() < op->finish) return false;
            if (op->moved < op->cost) {
                op->state = OpState::kWaiting;
                return true;
            }
            pop(queue, op->finish);
            return true;
        }
        case OpKind::kHost:
            if (role != Role::kHostThread) {
                kick(host_thread_);
                return false;
            }
            act(op, 0, 0, lock);
            pop(queue, std::max(latest(queue, *op), monotonic_now()));
            return true;
        case OpKind::kPoll:
            if (!op->poll()) return false;
            pop(queue, monotonic_now());
            return true;
    }
    return false;
}

// Takes one queue as far as it goes now.
bool Dispatcher::settle(Queue& queue, Role role, bool may_act, Lock& lock) {
    bool progressed = false, finished = false;
    for (;;) {
        progressed |= order(queue);
        if (queue.ops.empty() || !finish_front(queue, role, may_act, lock)) break;
        finished = true;
    }
    // What comes next may be due at a time the executor does not know of.
    if (finished && needs_attention(queue)) leave_to_executor(queue, role);
    return progressed || finished;
}

// Takes every queue as far as it goes now. A waiter carries out effects of its own queue only: it is not to be held
// up by another stream's copy.
void Dispatcher::pump(Role role, const Queue* mine, Lock& lock) {
    for (bool progressed = true; progressed;) {
        progressed = false;
        const std::vector<QueueRef> queues = active_;  // settling unlocks, so the list may change
        const Lane* seen = nullptr;
        for (const QueueRef& queue : queues) {
            if (queue->ordered == 0 || queue->lane.get() == seen) continue;
            queue->lane->device->observe(queue->lane->channel, queue->lane->view);
            seen = queue->lane.get();
        }
        for (const QueueRef& queue : queues) {
            const bool may_act = queue.get() == mine || (role == Role::kExecutor && queue->waiters == 0);
            progressed |= settle(*queue, role, may_act, lock);
        }
    }
    std::erase_if(active_, [](const QueueRef& queue) {
        if (queue->ops.empty()) queue->active = false;
        return queue->ops.empty();
    });
}

// --- waiting -----------------------------------------------------------------------------------------------------

Nanoseconds Dispatcher::next_event(Role role, const Queue* mine, const Op* target) {
    struct Earliest {
        Lane* lane;
        uint64_t work;
    };
    std::vector<Earliest> lanes;
    Nanoseconds at = kNever;
    auto when_executed = [&lanes](Lane* lane, uint64_t work) {
        for (Earliest& known : lanes) {
            if (known.lane != lane) continue;
            known.work = std::min(known.work, work);
            return;
        }
        lanes.push_back({lane, work});
    };
    if (target != nullptr && target->ordered) when_executed(target->lane, target->end_work);
    for (const QueueRef& ref : active_) {
        const Queue& queue = *ref;
        if (queue.ops.empty() || !needs_attention(queue)) continue;
        if (role == Role::kExecutor ? queue.waiters > 0 : &queue != mine) continue;
        const Op& front = *queue.ops.front();
        if (front.state == OpState::kActing) continue;  // the next action reports it
        if (front.kind == OpKind::kPoll && all_done(front.after)) {
            at = std::min(at, monotonic_now() + kPollPeriod);
            continue;
        }
        if ((front.kind == OpKind::kToDevice || front.kind == OpKind::kToHost) &&
            front.state == OpState::kSubmitted) {
            at = std::min(at, front.finish);
            continue;
        }
        // What has to happen on the device before the first operation that needs somebody.
        size_t i = 0;
        while (i < queue.ordered && !queue.ops[i]->acts()) ++i;
        if (i < queue.ordered) {
            when_executed(queue.lane.get(), queue.ops[i]->end_work);
            continue;
        }
        if (i > 0) when_executed(queue.lane.get(), queue.ops[i - 1]->end_work);
        for (const OpRef& before : queue.ops[i]->after)
            if (!before->done() && before->ordered) when_executed(before->lane, before->end_work);
    }
    for (const Earliest& e : lanes) at = std::min(at, e.lane->device->forecast(e.lane->channel, e.work));
    return at;
}

bool Dispatcher::wait_locked(const OpRef& op, const QueueRef& queue, Lock& lock) {
    if (op->done()) return true;
    const ExactTimers exact;
    ++waiters_;
    ++queue->waiters;
    bool lost = false;
    for (;;) {
        pump(Role::kWaiter, queue.get(), lock);
        if (op->done()) break;
        if (queue->lane->device->lost() || (gone_ && gone_())) {
            lost = true;
            break;
        }
        const Nanoseconds look = monotonic_now() + kLookAgain;
        const Nanoseconds at = std::min(next_event(Role::kWaiter, queue.get(), op.get()), look);
        const Nanoseconds now = monotonic_now();
        if (at > now && at <= now + kSpinWindow) {
            lock.unlock();
            while (monotonic_now() < at) relax_cpu();
            lock.lock();
            continue;
        }
        // Overdue but not done: another thread is carrying an effect out and will say when it is over.
        const Nanoseconds until = at > now ? at - kSpinWindow : now + kPollPeriod;
        progress_.wait_until(lock, steady(until));
    }
    --waiters_;
    if (--queue->waiters == 0 && needs_attention(*queue)) kick(executor_);
    return !lost;
}

bool Dispatcher::wait(const OpRef& op) {
    if (!op) return true;
    Lock lock(mutex_);
    const QueueRef queue = op->queue.lock();
    return !queue || wait_locked(op, queue, lock);  // a queue ends only when all in it is done
}

bool Dispatcher::drain(const QueueRef& queue) {
    Lock lock(mutex_);
    const OpRef last = queue->tail;
    return !last || wait_locked(last, queue, lock);
}

bool Dispatcher::is_done(const OpRef& op) {
    if (!op) return true;
    Lock lock(mutex_);
    if (!op->done()) pump(Role::kLauncher, nullptr, lock);
    return op->done();
}

bool Dispatcher::is_idle(const QueueRef& queue) {
    return is_done(tail(queue));
}

void Dispatcher::give_up_when(std::function<bool()> gone) {
    const Lock lock(mutex_);
    gone_ = std::move(gone);
}

OpRef Dispatcher::tail(const QueueRef& queue) {
    const Lock lock(mutex_);
    return queue->tail && !queue->tail->done() ? queue->tail : nullptr;
}

}  // namespace gemlet::sim
