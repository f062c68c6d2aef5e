#include "hook/submit/streams.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "hook/lookup/own_calls.h"
#include "hook/submit/device.h"
#include "hook/submit/governance.h"
#include "hook/submit/swap_events.h"

namespace gemlet::hook {

constinit LaunchState launch_state;

namespace {

struct Key {
    CUcontext context;  // of default streams; null for explicit ones, whose handle is unique
    CUstream handle;
    const void* thread;                 // of per-thread default streams
    const Device* elsewhere = nullptr;  // another one than the stream's
    bool operator==(const Key&) const = default;
};

struct KeyHash {
    size_t operator()(const Key& k) const {
        auto bits = reinterpret_cast<uintptr_t>(k.context) * 31 + reinterpret_cast<uintptr_t>(k.handle) * 17 +
                    reinterpret_cast<uintptr_t>(k.thread) + reinterpret_cast<uintptr_t>(k.elsewhere) * 13;
        return bits * 0x9e3779b97f4a7c15u >> 13;
    }
};

struct Capturing {
    CUstream handle;
    CUcontext context;
};

// Never destroyed: threads still launch while the program's destructors run.
struct Table {
    std::shared_mutex mutex;
    std::unordered_map<Key, Stream*, KeyHash> slots;
    bool some_elsewhere = false;
    std::mutex capture_mutex;
    std::vector<Capturing> capturing;
};

std::atomic<Table*> the_table{nullptr};

Table& table() {
    Table* t = the_table.load(std::memory_order_acquire);
    if (t) return *t;
    auto* fresh = new Table;
    if (the_table.compare_exchange_strong(t, fresh)) return *fresh;
    delete fresh;
    return *t;
}

struct alignas(64) Cached {
    uint32_t generation = 0;
    Key key{};
    Stream* stream = nullptr;
};
thread_local Cached cache[8];
thread_local const char thread_identity = 0;

CUdevice device_of(CUcontext context) {
    ContextScope scope(context);
    CUdevice device = -1;
    if (!scope.ok() || own().cuCtxGetDevice(&device) != CUDA_SUCCESS) return -1;
    return device;
}

Stream* slot_for(const Key& key, CUcontext context, bool own_thread_only, Device& device) {
    Table& t = table();
    std::unique_lock lock(t.mutex);
    Stream*& slot = t.slots[key];
    if (!slot) {
        slot = new Stream;
        slot->per_thread = own_thread_only;
        slot->handle = key.handle;
        slot->context = context;
        slot->device = &device;
        device.pacer.add_stream(slot, device.page);
    }
    t.some_elsewhere = t.some_elsewhere || key.elsewhere;
    return slot;
}

Stream* create(const Key& key, bool own_thread_only) {
    CUcontext context = key.context;
    if (!context && own().cuStreamGetCtx(key.handle, &context) != CUDA_SUCCESS) return nullptr;
    CUdevice ordinal = device_of(context);
    Device* device = ordinal < 0 ? nullptr : device_for(ordinal);
    return device ? slot_for(key, context, own_thread_only, *device) : nullptr;
}

}  // namespace

Stream* stream_for(CUstream handle, bool per_thread) {
    bool legacy = handle == CU_STREAM_LEGACY || (!handle && !per_thread);
    bool own_default = handle == CU_STREAM_PER_THREAD || (!handle && per_thread);
    Key key{nullptr, handle, nullptr};
    if (legacy || own_default) {
        if (own().cuCtxGetCurrent.directly(&key.context) != CUDA_SUCCESS || !key.context) return nullptr;
        key.handle = legacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
        key.thread = own_default ? &thread_identity : nullptr;
    }
    Cached& cached =
        cache[(reinterpret_cast<uintptr_t>(key.handle) >> 4 ^ reinterpret_cast<uintptr_t>(key.handle) >> 9) & 7];
    uint32_t now = launch_state.generation.load(std::memory_order_acquire);
    if (cached.generation == now && cached.key == key) [[likely]]
        return cached.stream;
    Stream* stream = nullptr;
    {
        std::shared_lock lock(table().mutex);
        if (auto found = table().slots.find(key); found != table().slots.end()) stream = found->second;
    }
    if (!stream) stream = create(key, own_default);
    if (stream) cached = {now, key, stream};
    return stream;
}

Stream* stream_elsewhere(const Stream& stream, CUdevice ordinal) {
    Device* device = device_in_use(ordinal);
    if (!device) return nullptr;
    const CUstream handle = stream.handle.load();
    const bool is_default = handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    const Key key{is_default ? stream.context.load() : nullptr, handle,
                  stream.per_thread ? &thread_identity : nullptr, device};
    {
        std::shared_lock lock(table().mutex);
        if (auto found = table().slots.find(key); found != table().slots.end()) return found->second;
    }
    return slot_for(key, stream.context, stream.per_thread, *device);
}

bool passes_unknown() {
    if (work_passes_unmanaged() || is_barred()) return true;
    CUcontext context = nullptr;
    const auto current = own().cuCtxGetCurrent;
    return current && current(&context) == CUDA_SUCCESS && !context;
}

void forget_streams() {
    the_table.store(nullptr);  // leaked, with locks that a thread of the parent may hold
    launch_state.captures = 0;
    launch_state.generation.fetch_add(1);
}

bool is_capturing(CUstream handle) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // The legacy stream answers with an error while a stream that it would wait for is captured, so leave it alone
    // then, too.
    return own().cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void capture_begins() {
    launch_state.captures.fetch_add(1);
    // A watcher that is recording a mark right now finishes before the capture starts.
    for (CUdevice ordinal = 0; ordinal < kMaxDevices; ++ordinal)
        if (Device* device = device_in_use(ordinal)) device->pacer.barrier();
}

void capture_began(CUstream handle, bool succeeded) {
    if (!succeeded) {
        launch_state.captures.fetch_sub(1);
        return;
    }
    CUcontext context = nullptr;
    own().cuStreamGetCtx(handle, &context);
    std::lock_guard lock(table().capture_mutex);
    table().capturing.push_back({handle, context});
}

// Ends the count even if the capture was invalidated, and leaves it alone if the stream was not capturing at all.
void capture_ended(CUstream handle) {
    Table& t = table();
    std::lock_guard lock(t.capture_mutex);
    const auto is_its = [=](const Capturing& one) { return one.handle == handle; };
    auto found = std::find_if(t.capturing.begin(), t.capturing.end(), is_its);
    if (found == t.capturing.end()) return;
    t.capturing.erase(found);
    launch_state.captures.fetch_sub(1);
}

void captures_gone(CUcontext context) {
    Table& t = table();
    std::lock_guard lock(t.capture_mutex);
    const size_t gone = std::erase_if(t.capturing, [=](const Capturing& one) { return one.context == context; });
    launch_state.captures.fetch_sub(int(gone));
}

void stream_destroying(CUstream handle) {
    capture_ended(handle);
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) return;
    Table& t = table();
    std::unique_lock lock(t.mutex);
    std::vector<Stream*> gone;  // kept: marks may still name them
    if (auto found = t.slots.find(Key{nullptr, handle, nullptr}); found != t.slots.end()) {
        gone.push_back(found->second);
        t.slots.erase(found);
    }
    if (t.some_elsewhere)
        std::erase_if(t.slots, [&](const auto& slot) {
            const bool is_its = slot.first.elsewhere && slot.first.handle == handle;
            if (is_its) gone.push_back(slot.second);
            return is_its;
        });
    if (gone.empty()) return;
    launch_state.generation.fetch_add(1, std::memory_order_release);
    lock.unlock();  // others go on while it waits for a record
    for (Stream* stream : gone)
        if (Device* device = stream->device) device->pacer.forget(*stream);
}

void context_destroying(CUcontext context) {
    swap_context_destroying(context);
    Table& t = table();
    std::unique_lock lock(t.mutex);
    std::erase_if(t.slots, [=](const auto& slot) { return slot.second->context.load() == context; });
    launch_state.generation.fetch_add(1, std::memory_order_release);
    lock.unlock();  // others go on while it waits for a record
    // Its streams may be gone already, and their marks not.
    for (CUdevice ordinal = 0; ordinal < kMaxDevices; ++ordinal)
        if (Device* device = device_in_use(ordinal)) device->pacer.forget(context);
}

}  // namespace gemlet::hook
