// The work of this process: operations in stream queues, and who carries their effects out.
//
// The shared device state knows only how much work a context has. What the work is lives here, in the process that
// submitted it: the order within and between streams, and the effects (bytes moved, host functions run), which happen
// when the modelled time of an operation is over.
//
// Nothing runs in the background unless it must: queued kernels without effects are found complete when somebody
// asks. Effects are carried out by the thread that waits for them or, when nobody does, by the executor, a thread of
// its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device.hpp"

namespace gemlet::sim {

enum class OpKind : uint8_t {
    kMarker,    // takes no time: an event record, a wait for other operations
    kKernel,    // runs on the multiprocessors for `cost` nanoseconds
    kToDevice,  // a copy engine moves `cost` bytes
    kToHost,
    kHost,  // a function of the program, always on the executor
    kPoll,  // waits until `poll` says yes
};

enum class OpState : uint8_t { kWaiting, kSubmitted, kActing, kDone };

// A context's share of a device.
struct Lane {
    Device* device;
    uint32_t channel;
    ChannelView view;  // as of the last look
};

struct Op;
struct Queue;
using OpRef = std::shared_ptr<Op>;

struct Op {
    OpKind kind = OpKind::kMarker;
    OpState state = OpState::kWaiting;
    bool ordered = false;  // complete once the lane has executed `end_work`
    bool counted = true;   // takes one of the stream's queue places
    uint64_t cost = 0;
    uint32_t width = kWhole;  // of a kernel: the part of the device that it fills
    uint64_t moved = 0;       // of a copy: bytes whose transfer is over
    uint64_t end_work = 0;
    Nanoseconds ready = 0;   // submitted by the host
    Nanoseconds finish = 0;  // valid when done
    Lane* lane = nullptr;
    std::weak_ptr<Queue> queue;
    std::vector<OpRef> after;                        // of other streams
    std::function<void(uint64_t, uint64_t)> effect;  // (first byte, bytes) of a copy, (0, cost) of others
    std::function<bool()> poll;                      // a kernel with one runs on until it says yes
    bool whole = false;                              // a copy whose effect cannot be split

    bool done() const { return state == OpState::kDone; }
    bool acts() const { return effect || poll || kind == OpKind::kPoll || kind == OpKind::kHost; }
};

// The operations of one stream, in order.
struct Queue {
    std::shared_ptr<Lane> lane;
    std::deque<OpRef> ops;
    size_t ordered = 0;  // this many from the front have Op::ordered
    size_t acting_ops = 0;
    size_t counted = 0;
    Nanoseconds last_finish = 0;
    OpRef tail;  // last one ever enqueued, done or not
    int waiters = 0;
    bool active = false;
};
using QueueRef = std::shared_ptr<Queue>;

class Dispatcher {
  public:
    static Dispatcher& get();

    // Appends operations, in order; blocks while the stream's queue is full.
    void enqueue(const QueueRef& queue, std::vector<OpRef>&& ops);
    void enqueue(const QueueRef& queue, OpRef op);

    bool is_done(const OpRef& op);
    bool is_idle(const QueueRef& queue);

    // Returns when the operation is done; false if the device was lost, or its work given up, meanwhile.
    bool wait(const OpRef& op);
    bool drain(const QueueRef& queue);

    // From now on nobody waits for work once `gone` says that it will never be done.
    void give_up_when(std::function<bool()> gone);

    OpRef tail(const QueueRef& queue);  // null when everything in it is done

  private:
    enum class Role { kLauncher, kWaiter, kExecutor, kHostThread };
    using Lock = std::unique_lock<std::mutex>;

    void append(const QueueRef& queue, OpRef&& op, Nanoseconds now);
    void wait_for_room(const QueueRef& queue, Lock& lock);
    bool wait_locked(const OpRef& op, const QueueRef& queue, Lock& lock);
    void pump(Role role, const Queue* mine, Lock& lock);
    bool settle(Queue& queue, Role role, bool may_act, Lock& lock);
    bool order(Queue& queue);
    bool finish_front(Queue& queue, Role role, bool may_act, Lock& lock);
    bool goes_on(Op& op);
    bool leave_to_executor(const Queue& queue, Role role);
    void act(const OpRef& op, uint64_t from, uint64_t bytes, Lock& lock);
    void pop(Queue& queue, Nanoseconds finish);
    bool needs_attention(const Queue& queue) const;
    struct Worker {
        const Role role;
        const char* name;
        std::condition_variable wake{};
        bool started = false;
        bool kicked = false;
    };
    void kick(Worker& worker);
    void run(Worker& worker);
    // When the next thing happens that `role` has to act on; `target` is what a waiter waits for.
    Nanoseconds next_event(Role role, const Queue* mine, const Op* target);

    std::mutex mutex_;
    std::condition_variable progress_;
    Worker executor_{Role::kExecutor, "gemlet-sim"};
    Worker host_thread_{Role::kHostThread, "gemlet-sim-host"};
    std::vector<QueueRef> active_;
    int waiters_ = 0;
    std::function<bool()> gone_;
};

// True on the host thread while it runs a function of the program, which must not call CUDA.
bool in_host_function();

}  // namespace gemlet::sim
