// How much memory the driver keeps for graphs with allocation nodes, and how many of them are launched within a
// limit:
//     nvcc -o graph_limit graph_limit.cu -lcuda && ./graph_limit && gemlet run --memory 1100MiB -- ./graph_limit
#include <cuda.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
// Says which call failed, and goes on.
#define C(x)                                      \
    do {                                          \
        CUresult r_ = (x);                        \
        if (r_) {                                 \
            const char* s;                        \
            cuGetErrorName(r_, &s);               \
            printf("line %d: %s\n", __LINE__, s); \
        }                                         \
    } while (0)
__global__ void spin(long long ns) {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    long long u;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(u));
    } while (u - t < ns);
}
CUdevice dev;
CUfunction fn;
CUcontext ctx;
// MiB
void say(const char* what) {
    cuuint64_t u, r;
    size_t f, t;
    C(cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &u));
    C(cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &r));
    cuMemGetInfo(&f, &t);
    printf("%-58s used %5llu reserved %5llu device %6zu\n", what, (unsigned long long)u >> 20,
           (unsigned long long)r >> 20, (t - f) >> 20);
    fflush(stdout);
}
struct G {
    CUgraph g;
    CUgraphExec e;
    CUdeviceptr p;
};
G make(size_t mib, long long ms, bool freed, unsigned long long flags = 0) {
    G x{};
    C(cuGraphCreate(&x.g, 0));
    CUgraphNode a, k, m, f;
    CUDA_MEM_ALLOC_NODE_PARAMS p{};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.poolProps.location.id = 0;
    p.bytesize = mib << 20;
    C(cuGraphAddMemAllocNode(&a, x.g, nullptr, 0, &p));
    x.p = p.dptr;
    CUDA_MEMSET_NODE_PARAMS s{};
    s.dst = p.dptr;
    s.value = 1;
    s.elementSize = 4;
    s.width = (mib << 20) / 4;
    s.height = 1;
    C(cuGraphAddMemsetNode(&m, x.g, &a, 1, &s, ctx));
    long long ns = ms * 1000000;
    void* args[] = {&ns};
    CUDA_KERNEL_NODE_PARAMS kp{};
    kp.func = fn;
    kp.gridDimX = kp.gridDimY = kp.gridDimZ = kp.blockDimX = kp.blockDimY = kp.blockDimZ = 1;
    kp.kernelParams = args;
    C(cuGraphAddKernelNode(&k, x.g, &m, 1, &kp));
    if (freed) C(cuGraphAddMemFreeNode(&f, x.g, &k, 1, p.dptr));
    C(cuGraphInstantiateWithFlags(&x.e, x.g, flags));
    return x;
}

int main() {
    C(cuInit(0));
    C(cuDeviceGet(&dev, 0));
    cudaFree(0);
    C(cuCtxGetCurrent(&ctx));
    cudaFunction_t cf;
    cudaGetFuncBySymbol(&cf, (void*)spin);
    fn = (CUfunction)cf;
    CUstream s[6];
    for (auto& x : s) C(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
    say("start");
    std::vector<G> g;
    for (int i = 0; i < 6; ++i) g.push_back(make(256, 500, true));
    int n = 0;
    for (auto& x : g) n += cuGraphLaunch(x.e, s[0]) == 0;
    printf("one stream: %d of 6\n", n);
    say("queued");
    cuCtxSynchronize();
    n = 0;
    for (int i = 0; i < 6; ++i) {
        n += cuGraphLaunch(g[i].e, s[i]) == 0;
        cuCtxSynchronize();
    }
    printf("in turn: %d of 6\n", n);
    say("done");
    n = 0;
    for (int i = 0; i < 6; ++i) n += cuGraphLaunch(g[i].e, s[i]) == 0;
    printf("at once: %d of 6\n", n);
    say("in flight");
    cuCtxSynchronize();
    n = 0;
    for (int i = 0; i < 6; ++i) n += cuGraphLaunch(g[i].e, s[i]) == 0;
    printf("at once again: %d of 6\n", n);
    say("in flight");
    cuCtxSynchronize();
    C(cuDeviceGraphMemTrim(dev));
    say("trimmed");
    G l = make(256, 10, false);
    C(cuGraphLaunch(l.e, s[0]));
    cuCtxSynchronize();
    printf("beside memory that was left: %d\n", cuGraphLaunch(g[0].e, s[0]));
    say("left");
    cuCtxSynchronize();
    C(cuMemFreeAsync(l.p, s[1]));
    printf("when it is freed: %d\n", cuGraphLaunch(g[0].e, s[0]));
    say("freed");
    cuCtxSynchronize();
    C(cuGraphLaunch(l.e, s[0]));
    cuCtxSynchronize();
    {
        CUgraph q;
        C(cuGraphCreate(&q, 0));
        CUgraphNode f;
        C(cuGraphAddMemFreeNode(&f, q, nullptr, 0, l.p));
        CUgraphExec e;
        C(cuGraphInstantiateWithFlags(&e, q, 0));
        C(cuGraphLaunch(e, s[2]));
        printf("when a graph freed it: %d\n", cuGraphLaunch(g[0].e, s[0]));
    }
    say("freed");
    cuCtxSynchronize();
}
