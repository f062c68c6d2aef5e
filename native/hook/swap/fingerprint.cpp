#include "hook/swap/fingerprint.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook/lookup/own_calls.h"

namespace gemlet::hook {

namespace {

constexpr unsigned kThreads = 512;

// One block of threads a part. Each thread sums the terms of every 512th pair of words; then the threads' sums are
// summed. The finalizers are those of splitmix64 and MurmurHash3, both bijections:
//     a += f(w + key_a + place * step_a),  b += g((w ^ key_b) + place * step_b)
// tests/gpu compares the result with the same in Python; native/sim/kernels.cpp is the simulated machine's.
constexpr char kProgram[] = R"(
.version 6.4
.target sm_70
.address_size 64

.visible .entry gemlet_fingerprint(
    .param .u64 data, .param .u64 out, .param .u64 words,
    .param .u64 key_a, .param .u64 step_a, .param .u64 key_b, .param .u64 step_b)
.maxntid 512, 1, 1
{
    .reg .pred %p, %q;
    .reg .b32 %t, %half, %mine, %other, %base;
    .reg .b64 %at, %end, %part, %place, %w0, %w1, %x, %y, %a, %b, %o;
    .reg .b64 %ka, %sa, %kb, %sb, %words, %row;
    .shared .align 16 .b8 sums[8192];

    ld.param.u64 %at, [data];
    ld.param.u64 %words, [words];
    ld.param.u64 %ka, [key_a];
    ld.param.u64 %sa, [step_a];
    ld.param.u64 %kb, [key_b];
    ld.param.u64 %sb, [step_b];
    cvta.to.global.u64 %at, %at;
    mov.u32 %t, %ctaid.x;
    cvt.u64.u32 %part, %t;
    shl.b64 %row, %words, 3;
    mad.lo.u64 %at, %part, %row, %at;
    add.u64 %end, %at, %row;
    mov.u32 %t, %tid.x;
    cvt.u64.u32 %place, %t;
    shl.b64 %x, %place, 4;
    add.u64 %at, %at, %x;
    shl.b64 %place, %place, 1;
    mov.u64 %a, 0;
    mov.u64 %b, 0;
    setp.ge.u64 %p, %at, %end;
    @%p bra summed;
next:
    ld.global.v2.u64 {%w0, %w1}, [%at];

    mad.lo.u64 %x, %place, %sa, %ka;
    add.u64 %x, %x, %w0;
    shr.u64 %y, %x, 32;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xbf58476d1ce4e5b9;
    shr.u64 %y, %x, 29;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0x94d049bb133111eb;
    shr.u64 %y, %x, 32;
    xor.b64 %x, %x, %y;
    add.u64 %a, %a, %x;

    xor.b64 %w0, %w0, %kb;
    mad.lo.u64 %x, %place, %sb, %w0;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xff51afd7ed558ccd;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xc4ceb9fe1a85ec53;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    add.u64 %b, %b, %x;

    add.u64 %place, %place, 1;

    mad.lo.u64 %x, %place, %sa, %ka;
    add.u64 %x, %x, %w1;
    shr.u64 %y, %x, 32;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xbf58476d1ce4e5b9;
    shr.u64 %y, %x, 29;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0x94d049bb133111eb;
    shr.u64 %y, %x, 32;
    xor.b64 %x, %x, %y;
    add.u64 %a, %a, %x;

    xor.b64 %w1, %w1, %kb;
    mad.lo.u64 %x, %place, %sb, %w1;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xff51afd7ed558ccd;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, 0xc4ceb9fe1a85ec53;
    shr.u64 %y, %x, 33;
    xor.b64 %x, %x, %y;
    add.u64 %b, %b, %x;

    add.u64 %place, %place, 1023;
    add.u64 %at, %at, 8192;
    setp.lt.u64 %p, %at, %end;
    @%p bra next;
summed:
    mov.u32 %base, sums;
    shl.b32 %mine, %t, 4;
    add.u32 %mine, %base, %mine;
    st.shared.v2.u64 [%mine], {%a, %b};
    mov.u32 %half, 256;
halve:
    bar.sync 0;
    setp.ge.u32 %p, %t, %half;
    @%p bra joined;
    shl.b32 %other, %half, 4;
    add.u32 %other, %mine, %other;
    ld.shared.v2.u64 {%w0, %w1}, [%other];
    add.u64 %a, %a, %w0;
    add.u64 %b, %b, %w1;
    st.shared.v2.u64 [%mine], {%a, %b};
joined:
    shr.u32 %half, %half, 1;
    setp.ne.u32 %q, %half, 0;
    @%q bra halve;

    setp.ne.u32 %p, %t, 0;
    @%p bra done;
    ld.param.u64 %o, [out];
    cvta.to.global.u64 %o, %o;
    shl.b64 %part, %part, 4;
    add.u64 %o, %o, %part;
    st.global.v2.u64 [%o], {%a, %b};
done:
    ret;
}
)";

struct Keys {
    uint64_t a, step_a, b, step_b;
};

// GRND_NONBLOCK. libc's own getrandom() is younger than the oldest libc that the hook loads with.
constexpr unsigned kNonBlocking = 1;

// Of this process. Odd steps: places differ in all of them.
const Keys& keys() {
    static const Keys drawn = [] {
        Keys k{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89};
        if (syscall(SYS_getrandom, &k, sizeof k, kNonBlocking) < 0)
            k.a ^= uint64_t(uintptr_t(&k));  // early in the machine's boot
        k.step_a |= 1;
        k.step_b |= 1;
        return k;
    }();
    return drawn;
}

constexpr size_t kResultBytes = Fingerprinter::kPlaces * sizeof(Fingerprint);

}  // namespace

bool Fingerprinter::ready() {
    if (tried_) return kernel_ != nullptr;
    tried_ = true;
    const OwnCalls& o = own();
    if (!o.cuModuleLoadData || !o.cuModuleGetFunction || !o.cuModuleUnload || !o.cuLaunchKernel ||
        !o.cuMemHostUnregister || !o.cuMemHostGetDevicePointer_v2)
        return false;
    if (!results_) {
        void* memory = mmap(nullptr, kResultBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return false;
        results_ = memory;
    }
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (o.cuMemHostRegister_v2(results_, kResultBytes, flags) != CUDA_SUCCESS) return false;
    CUfunction kernel = nullptr;
    if (o.cuMemHostGetDevicePointer_v2(&device_results_, results_, 0) == CUDA_SUCCESS &&
        o.cuModuleLoadData(&module_, kProgram) == CUDA_SUCCESS &&
        o.cuModuleGetFunction(&kernel, module_, "gemlet_fingerprint") == CUDA_SUCCESS)
        kernel_ = kernel;
    if (!kernel_) o.cuMemHostUnregister(results_);
    return kernel_ != nullptr;
}

bool Fingerprinter::start(CUdeviceptr at, uint64_t bytes, uint64_t place, CUstream stream) const {
    CUdeviceptr out = device_results_ + place * sizeof(Fingerprint);
    uint64_t words = kPart / 8;
    Keys k = keys();
    void* arguments[] = {&at, &out, &words, &k.a, &k.step_a, &k.b, &k.step_b};
    return own().cuLaunchKernel(kernel_, unsigned(bytes / kPart), 1, 1, kThreads, 1, 1, 0, stream, arguments,
                                nullptr) == CUDA_SUCCESS;
}

void Fingerprinter::unload(bool alive) {
    if (alive && module_) own().cuModuleUnload(module_);
    if (alive && kernel_) own().cuMemHostUnregister(results_);
    module_ = nullptr;
    kernel_ = nullptr;
    tried_ = false;
}

}  // namespace gemlet::hook
