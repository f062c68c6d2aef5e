"""The rest of the driver: identity, modules, default streams, callbacks, fork, faults, NVML."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sim.driver.conftest import SimulatedMachine


def test_it_never_passes_for_a_gpu(machine: SimulatedMachine) -> None:
    out = machine.run("open_device(); print(check(cu.cuDeviceGetName(100, 0)).rstrip(b'\\0 ').decode())")
    assert out.strip() == "NVIDIA H200 (simulated)"


def test_modules_and_libraries(machine: SimulatedMachine) -> None:
    machine.run("""
        from simulated_cuda import PTX
        open_device(); module = check(cu.cuModuleLoadData(PTX))
        assert code(cu.cuModuleGetFunction(module, b"nothing")) == 500
        unknown = check(cu.cuModuleGetFunction(module, b"unknown"))
        assert check(cu.cuFuncGetName(unknown)) == b"unknown"
        assert [tuple(map(int, check(cu.cuFuncGetParamInfo(unknown, i)))) for i in range(2)] == [(0, 4), (8, 24)]
        assert code(cu.cuFuncGetParamInfo(unknown, 2)) == 1
        library = check(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
        k = check(cu.cuLibraryGetKernel(library, b"spin"))
        check(launch(check(cu.cuKernelGetFunction(k)), 1000)); check(cu.cuCtxSynchronize())
    """)


def test_mangled_names_follow_the_contract(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device()
        name = b"_ZN3app4fillEPvmm"; parameters = b"(.param .u64 a, .param .u64 b, .param .u64 c)"
        module = check(cu.cuModuleLoadData(b".visible .entry " + name + parameters + b"{ret;}\\0"))
        fill = check(cu.cuModuleGetFunction(module, name)); p = check(cu.cuMemAlloc(16))
        check(launch(fill, int(p), 16, 8)); assert copy_from(p, 16) == b"\\x08" * 16
    """)


def test_a_cubin_of_the_real_compiler(machine: SimulatedMachine) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    source, cubin = machine.folder / "kernels.cu", machine.folder / "kernels.cubin"
    source.write_text("""
        __device__ int counter[12];
        __global__ void spin(unsigned long long n) { counter[n % 12] = 1; }
        __global__ void other(int a, double b, char c, float* p) { *p = a + b + c; }
    """)
    subprocess.run(["nvcc", "-arch=sm_90", "-cubin", source, "-o", cubin], check=True, timeout=120)
    machine.run(
        """
        open_device(); module = check(cu.cuModuleLoad(sys.argv[1].encode()))
        other = check(cu.cuModuleGetFunction(module, b"_Z5otheridcPf"))
        parameters = [tuple(map(int, check(cu.cuFuncGetParamInfo(other, i)))) for i in range(4)]
        assert parameters == [(0, 4), (8, 8), (16, 1), (24, 8)], parameters
        assert check(cu.cuModuleGetGlobal(module, b"counter"))[1] == 48
        begin = time.monotonic(); check(launch(check(cu.cuModuleGetFunction(module, b"_Z4spiny")), 20_000_000))
        check(cu.cuCtxSynchronize()); assert time.monotonic() - begin >= 0.02
        """,
        cubin,
    )


def test_many_threads_and_a_host_function_that_blocks(machine: SimulatedMachine) -> None:
    for _ in range(3):
        done = machine.run_c((Path(__file__).parent / "threads.c").read_text())
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_legacy_stream_waits_for_blocking_streams_only(machine: SimulatedMachine) -> None:
    machine.run("""
        open_device(); spin = kernel("spin"); blocking, free = check(cu.cuStreamCreate(0)), check(cu.cuStreamCreate(1))
        host = check(cu.cuMemHostAlloc(8, 0)); device = check(cu.cuMemAlloc(8))
        def legacy_copy_beside(stream, nanoseconds):
            check(launch(spin, nanoseconds, stream=stream)); check(cu.cuMemcpyHtoD(device, bytes(8), 8))
            return code(cu.cuStreamQuery(stream))
        assert legacy_copy_beside(blocking, 100_000_000) == 0
        assert legacy_copy_beside(free, 1_000_000_000_000) == 600   # CUDA_ERROR_NOT_READY: it did not wait
        os._exit(0)
    """)


C_PROGRAM = r"""
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define MUST(call) do { CUresult r = (call); if (r) { printf("%s: %d\n", #call, r); return 1; } } while (0)
static void CUDA_CB on_host(void* data) {
    *(int*)data = cuCtxSynchronize() == CUDA_ERROR_NOT_PERMITTED ? 1 : -1;
}
int main(void) {
    const char* ptx = ".visible .entry add(.param .u64 p, .param .u64 n, .param .u64 v) { ret; }";
    CUcontext context; CUmodule module; CUfunction add; CUstream stream; CUdeviceptr words; CUgraph graph;
    CUgraphExec exec;
    unsigned long long back[4] = {0}, n = 4, v = 3;
    int ran = 0, status = 0;
    if (cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED) return 2;
    MUST(cuInit(0));
    MUST(cuCtxCreate(&context, NULL, 0, 0));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&add, module, "add"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&words, sizeof back));
    MUST(cuMemcpyHtoD(words, back, sizeof back));
    struct { unsigned long long p, n, v; } packed = {words, n, v};
    size_t size = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    MUST(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
    void* arguments[] = {&words, &n, &v};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, NULL, 0};
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuLaunchKernelEx(&config, add, arguments, NULL));
    MUST(cuLaunchHostFunc(stream, on_host, &ran));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; ++i) MUST(cuGraphLaunch(exec, stream));
    MUST(cuMemcpyDtoHAsync(back, words, sizeof back, stream));
    MUST(cuStreamSynchronize(stream));
    if (back[0] != 33 || back[3] != 33 || ran != 1) { printf("%llu %llu %d\n", back[0], back[3], ran); return 3; }
    pid_t child = fork();
    if (child == 0) {
        int dead = cuMemAlloc(&words, 8) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(dead ? 7 : 8);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) return 4;
    MUST(cuMemFree(words));  /* the parent goes on */
    MUST(cuCtxDestroy(context));
    puts("ok");
    return 0;
}
"""


def test_a_c_program_and_its_forked_child(machine: SimulatedMachine) -> None:
    done = machine.run_c(C_PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_faults_on_demand(machine: SimulatedMachine) -> None:
    machine.run(
        """
        open_device(); spin = kernel("spin")
        assert [code(cu.cuMemAlloc(8)) for _ in range(4)] == [0, 2, 0, 0]
        assert [code(launch(spin, 10)) for _ in range(3)] == [0, 0, 719]
        assert code(cu.cuCtxSynchronize()) == 719 and code(cu.cuMemGetInfo()) == 719   # sticky
        """,
        GEMLET_SIM_FAULTS="cuMemAlloc:2=2,cuLaunchKernel:3=719!",
    )


def test_calls_that_share_their_code_are_counted_apart(machine: SimulatedMachine) -> None:
    machine.run(
        """
        open_device(); p = check(cu.cuMemAlloc(8)); word = bytes(8)
        to_device, to_host = (lambda: code(cu.cuMemcpyHtoD(p, word, 8))), (lambda: code(cu.cuMemcpyDtoH(word, p, 8)))
        assert [to_device(), to_host(), to_device(), to_host(), to_device()] == [0, 0, 2, 0, 0]
        """,
        GEMLET_SIM_FAULTS="cuMemcpyHtoD:2=2",
    )


def test_a_lost_device_is_lost_for_everyone(machine: SimulatedMachine) -> None:
    victim = machine.start("""
        open_device(); spin = kernel("spin"); check(launch(spin, 60_000_000_000)); print("ready", flush=True)
        print(code(cu.cuCtxSynchronize()), code(launch(spin, 10)))
    """)
    assert victim.stdout is not None
    victim.stdout.readline()
    machine.run("ctypes.CDLL('libcuda.so.1').gemletSimSetLost(0, 1)")
    assert victim.communicate(timeout=60)[0].split() == ["999", "999"]


def test_nvml_tells_the_same_story(machine: SimulatedMachine) -> None:
    busy = machine.start("""
        open_device(); check(cu.cuMemAlloc(1 << 30)); spin = kernel("spin"); print("ready", flush=True)
        while True: check(launch(spin, 1_000_000))
    """)
    assert busy.stdout is not None
    busy.stdout.readline()
    out = machine.run("""
        import json, pynvml as nvml
        time.sleep(0.4); nvml.nvmlInit(); device = nvml.nvmlDeviceGetHandleByIndex(0)
        check(cu.cuInit(0)); uuid = bytes(check(cu.cuDeviceGetUuid(0)).bytes).hex()
        print(json.dumps({
            "name": nvml.nvmlDeviceGetName(device), "driver": nvml.nvmlSystemGetDriverVersion(),
            "uuid": nvml.nvmlDeviceGetUUID(device)[4:].replace("-", "") == uuid,
            "pci": nvml.nvmlDeviceGetPciInfo(device).busId[-10:],
            "used": nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2).used,
            "gpu": nvml.nvmlDeviceGetUtilizationRates(device).gpu,
            "processes": [[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(device)],
            "samples": [[s.pid, s.smUtil] for s in nvml.nvmlDeviceGetProcessUtilization(device, 0)],
        }))
    """)
    busy.kill()
    busy.communicate()
    seen = json.loads(out)
    used = (1 << 30) + 524_288_000
    assert seen["name"] == "NVIDIA H200 (simulated)"
    assert seen["driver"] == "580.159.04"
    assert seen["uuid"] is True
    assert seen["used"] == used
    assert seen["gpu"] >= 90
    assert seen["processes"] == [[busy.pid, used]]
    assert seen["samples"][0][0] == busy.pid
    assert seen["samples"][0][1] >= 90


def test_two_devices(machine: SimulatedMachine) -> None:
    out = machine.run(
        """
        check(cu.cuInit(0)); n = check(cu.cuDeviceGetCount())
        uuids = {bytes(check(cu.cuDeviceGetUuid(i)).bytes) for i in range(n)}
        print(n, len(uuids), check(cu.cuDeviceCanAccessPeer(0, 1)))
        """,
        GEMLET_SIM_DEVICES="2",
    )
    assert out.split() == ["2", "2", "1"]


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 2", [0, 2]),
        ("0,7,1", [0]),  # the list ends at the first name that is not valid
        ("UUID1", [1]),
        ("0,0", []),
        ("", []),
        ("-1", []),
    ],
)
def test_a_program_sees_the_devices_that_it_was_shown(machine: SimulatedMachine, named: str, seen: list[int]) -> None:
    uuids = """
        import json
        initialised = code(cu.cuInit(0)) == 0
        found = [check(cu.cuDeviceGet(i)) for i in range(check(cu.cuDeviceGetCount()))] if initialised else []
        print(json.dumps([bytes(check(cu.cuDeviceGetUuid(device)).bytes).hex() for device in found]))
    """
    whole = json.loads(machine.run(uuids, GEMLET_SIM_DEVICES="3"))
    assert len(whole) == 3
    parts = (whole[1][:8], whole[1][8:12], whole[1][12:16], whole[1][16:20], whole[1][20:])
    shown = named.replace("UUID1", "GPU-" + "-".join(parts))
    found = json.loads(machine.run(uuids, GEMLET_SIM_DEVICES="3", CUDA_VISIBLE_DEVICES=shown))
    assert found == [whole[index] for index in seen]


def test_a_device_that_is_not_shown_cannot_be_used(machine: SimulatedMachine) -> None:
    machine.run(
        """
        check(cu.cuInit(0))
        assert code(cu.cuDeviceGet(1)) == 101
        assert code(cu.cuDeviceGetName(100, 1)) == 101
        assert code(cu.cuDeviceGetByPCIBusId(b"0000:10:00.0")) == 101
        assert int(check(cu.cuDeviceGetByPCIBusId(b"0000:11:00.0"))) == int(check(cu.cuDeviceGet(0)))
        """,
        GEMLET_SIM_DEVICES="2",
        CUDA_VISIBLE_DEVICES="1",
    )


def test_devices_are_counted_anew(machine: SimulatedMachine) -> None:
    out = machine.run(
        """
        check(cu.cuInit(0))
        context = check(cu.cuDevicePrimaryCtxRetain(0))
        check(cu.cuCtxSetCurrent(context))
        print(int(check(cu.cuCtxGetDevice())))
        memory = check(cu.cuMemAlloc(1 << 20))
        ordinal = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        print(check(cu.cuPointerGetAttribute(ordinal, memory)))
        check(cu.cuMemFreeAsync(check(cu.cuMemAllocAsync(1 << 20, 0)), 0))
        """,
        GEMLET_SIM_DEVICES="2",
        CUDA_VISIBLE_DEVICES="1",
    )
    assert out.split() == ["0", "0"]
