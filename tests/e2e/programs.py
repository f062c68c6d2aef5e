"""Small CUDA programs in ctypes for the tests; also what `gemlet run` starts there."""

SPIN = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: {status}")
check("cuInit", 0)
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
check("cuCtxSetCurrent", context)
ptx = b'''.version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    ret;
}
'''
check("cuModuleLoadData", ctypes.byref(module), ptx)
check("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
duration = ctypes.c_uint64(500_000)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
end = time.monotonic() + float(sys.argv[1])
print("ready", flush=True)
while time.monotonic() < end:
    for _ in range(4):
        check("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    check("cuCtxSynchronize")
print("done", flush=True)
"""

ALLOCATE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
free, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(total.value, cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))))
"""

# Fills 150 MiB; when the file of its first argument appears looks whether they are right, and ends with the second.
SWAP = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: {status}")
check("cuInit", 0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
check("cuCtxSetCurrent", context)
size = ctypes.c_size_t(150 << 20)
data = os.urandom(1 << 20) * 150
check("cuMemAlloc_v2", ctypes.byref(pointer), size)
check("cuMemcpyHtoD_v2", pointer, data, size)
print("filled", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
back = ctypes.create_string_buffer(size.value)
check("cuMemcpyDtoH_v2", back, pointer, size)
print("right" if back.raw == data else "wrong", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""

# The same with memory that it maps by itself.
SWAP_MAPPED = SWAP.replace(
    'check("cuMemAlloc_v2", ctypes.byref(pointer), size)\n',
    """
pinned, device, readwrite = 1, 1, 3
words = lambda *values: (ctypes.c_uint32 * len(values))(*values)
handle, none = ctypes.c_uint64(), ctypes.c_uint64(0)
check("cuMemCreate", ctypes.byref(handle), size, words(pinned, 0, device, 0, 0, 0, 0, 0, 0, 0), none)
check("cuMemAddressReserve", ctypes.byref(pointer), size, none, none, none)
check("cuMemMap", pointer, size, none, handle, none)
check("cuMemSetAccess", pointer, size, words(device, 0, readwrite), ctypes.c_size_t(1))
""",
)

MULTIPROCESSORS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, count = ctypes.c_void_p(), ctypes.c_int()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, 0)
print(count.value)
"""

# Allocates as many MiB as each argument says: the driver's answer, whether it is managed, MiB free afterwards.
ALLOCATE_EACH = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
for size in sys.argv[1:]:
    free, total, managed = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
    answer = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) << 20))
    cuda.cuPointerGetAttribute(ctypes.byref(managed), 8, pointer)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(answer, managed.value, free.value >> 20)
"""

# A kernel as large as the device is said to be, all of whose blocks run at once.
COOPERATIVE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuModuleLoadData(
    ctypes.byref(module), b".version 6.0\\n.target sm_52\\n.address_size 64\\n.visible .entry empty()\\n{ ret; }\\n"
)
cuda.cuModuleGetFunction(ctypes.byref(function), module, b"empty")
cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, 0)
print([cuda.cuLaunchCooperativeKernel(function, 2 * count.value, 1, 1, 1024, 1, 1, 0, None, None) for _ in range(2)])
"""
