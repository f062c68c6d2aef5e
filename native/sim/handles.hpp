// What CUDA's opaque handles point to.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "api.hpp"
#include "device.hpp"
#include "heap.hpp"
#include "image.hpp"
#include "work.hpp"

namespace gemlet::sim {

// First word of every handle, so that a pointer to something else, or to something destroyed, is an error and not a
// crash. Destroyed handles are kept for reuse by their own kind: their memory always holds a tag.
enum class Tag : uint64_t {
    kFree = 0,
    kContext = 0x7478746363696d01,
    kStream = 0x6d72747363696d02,
    kEvent = 0x746e766563696d03,
    kModule = 0x646f6d6363696d04,
    kFunction = 0x636e756663696d05,
    kLibrary = 0x6262696c63696d06,
    kKernel = 0x6e72656b63696d07,
    kGraph = 0x687072676369616d,
    kGraphNode = 0x65646f6e63696d09,
    kGraphExec = 0x6365786563696d0a,
    kArray = 0x7961727263696d0b,
    kMipmappedArray = 0x6d70696d63696d0c,
    kPool = 0x6c6f6f7063696d0d,
};

template <class T>
T* created(T* handle, Tag tag) {
    handle->tag = tag;
    return handle;
}

class Capture;

}  // namespace gemlet::sim

struct CUctx_st {
    gemlet::sim::Tag tag;
    gemlet::sim::Device* device;
    unsigned flags;
    unsigned long long id;
    unsigned api_version;
    std::shared_ptr<gemlet::sim::Lane> lane;
    CUstream legacy;
    std::mutex mutex;  // guards streams, leaving and per_thread
    std::set<CUstream> streams;
    std::vector<gemlet::sim::QueueRef> leaving;  // of destroyed streams whose work went on
    std::unordered_map<std::thread::id, CUstream> per_thread;
    std::map<int, size_t> limits;
    CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
    CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    std::set<CUcontext> peers;
    bool primary = false;
    CUcontext owner;      // of a green one: the primary context, to which memory, modules and events belong
    CUgreenCtx as_green;  // null of others
    std::set<CUcontext> greens;
    int multiprocessors = 0;  // that its kernels may use
};

struct CUstream_st {
    gemlet::sim::Tag tag;
    CUcontext context;
    gemlet::sim::QueueRef queue;
    unsigned flags;
    int priority;
    unsigned long long id;
    std::shared_ptr<gemlet::sim::Capture> capture;  // null: not capturing
    std::vector<CUgraphNode> capture_tail;          // what the next captured operation depends on
    bool capture_origin = false;
    std::mutex waited_for;  // held while a copy to pageable memory waits: events are recorded only after it
};

struct CUevent_st {
    gemlet::sim::Tag tag;
    CUcontext context;
    unsigned flags;
    gemlet::sim::OpRef op;                        // of the last record
    std::weak_ptr<gemlet::sim::Capture> capture;  // of the last record, if it was captured
    std::vector<CUgraphNode> capture_nodes;
};

namespace gemlet::sim {

// Something that can be launched, regardless of the handle's owner.
struct Launchable {
    Tag tag;
    std::shared_ptr<const Entry> entry;
    int attributes[32] = {};
};

}  // namespace gemlet::sim

struct CUfunc_st : gemlet::sim::Launchable {
    CUmodule module;
};

struct CUkern_st : gemlet::sim::Launchable {
    CUlibrary library;
};

struct CUmod_st {
    gemlet::sim::Tag tag;
    CUcontext context;
    gemlet::sim::Image image;
    std::map<std::string, CUfunction> functions;
    std::map<std::string, CUdeviceptr> globals;
    std::mutex mutex;
};

struct CUlib_st {
    gemlet::sim::Tag tag;
    gemlet::sim::Image image;
    std::map<std::string, CUkernel> kernels;
    std::map<CUcontext, CUmodule> modules;
    std::mutex mutex;
};

namespace gemlet::sim {

// --- the calling thread's contexts (driver_context.cpp)
CUcontext current_context();  // null without one
CUcontext require_context();  // or CUDA_ERROR_INVALID_CONTEXT
void set_current_context(CUcontext context);
void push_context(CUcontext context);
CUcontext pop_context();
// `multiprocessors`: the limit of an MPS client's context; 0: the client's own limit.
CUcontext create_context(CUdevice device, unsigned flags, unsigned api_version, unsigned multiprocessors = 0);
void destroy_context(CUcontext context);
void synchronize_context(CUcontext context);
CUcontext checked(CUcontext context);
CUcontext owner_of(CUcontext context);       // of what is made while it is current: the primary one, if it is green
CUcontext primary_context(CUdevice device);  // made if needed, for calls that work without a current context

Device& device_of(CUdevice ordinal);  // or CUDA_ERROR_INVALID_DEVICE

// --- streams (streams.cpp)
CUstream resolve_stream(CUstream stream);  // of the current context, with 0 and the special handles understood
CUstream create_stream(CUcontext context, unsigned flags, int priority);
void destroy_stream(CUstream stream);

// Puts operations on a stream with the order the default streams demand. The stream is not capturing.
void enqueue(CUstream stream, std::vector<OpRef> ops);
// Waits for all that is on the stream; the legacy stream stands for all blocking ones.
void synchronize_stream(CUstream stream);
bool stream_is_idle(CUstream stream);

// --- modules
CUmodule load_module(CUcontext context, Image image);
void unload_module(CUmodule module);
Launchable& launchable(CUfunction function);  // a CUkernel in disguise is fine too

template <class T>
T* checked_handle(T* handle, Tag tag) {
    check(handle != nullptr && handle->tag == tag, CUDA_ERROR_INVALID_HANDLE);
    return handle;
}

// Memory for handles of one kind, reused but never given back: see Tag.
template <class T>
class HandlePool {
  public:
    static T* make() {
        const std::lock_guard guard(mutex());
        auto& free = list();
        if (free.size() > 64) {  // the longest dead first, so that stale handles are noticed for a while
            T* handle = free.front();
            free.erase(free.begin());
            return handle;
        }
        return new T();
    }
    static void drop(T* handle) {
        handle->tag = Tag::kFree;
        const std::lock_guard guard(mutex());
        list().push_back(handle);
    }

  private:
    static std::mutex& mutex() {
        static auto* m = new std::mutex;
        return *m;
    }
    static std::vector<T*>& list() {
        static auto* l = new std::vector<T*>;
        return *l;
    }
};

}  // namespace gemlet::sim
