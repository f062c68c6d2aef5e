// What another thread's questions about a stream cost while a copy to pageable memory waits in it.
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
__global__ void spin(long long ns) { long long t, b; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(b)); do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); while (t - b < ns); }
static double us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
int main() {
    cudaStream_t s, other; cudaStreamCreate(&s); cudaStreamCreate(&other);
    cudaEvent_t e, r; cudaEventCreateWithFlags(&e, cudaEventDisableTiming); cudaEventCreateWithFlags(&r, cudaEventDisableTiming);
    int *d; cudaMalloc(&d, 4096); void* pageable = malloc(4096); void* pinned; cudaMallocHost(&pinned, 4096);
    const char* waits[] = {"copy to pageable memory", "copy to pinned memory + cudaStreamSynchronize", "cudaStreamSynchronize"};
    const char* asks[] = {"cudaStreamQuery", "cudaEventQuery of an event on it", "cudaEventRecord on it", "cudaStreamQuery of another"};
    for (int w = 0; w < 3; ++w) for (int a = 0; a < 4; ++a) {
        std::vector<double> took; int idle = 0;
        for (int i = 0; i < 20; ++i) {
            std::atomic<bool> inside{false};
            spin<<<1, 1, 0, s>>>(20000000); cudaEventRecord(e, s);
            std::thread t([&] { inside = true;
                if (w == 0) cudaMemcpyAsync(pageable, d, 4096, cudaMemcpyDeviceToHost, s);
                else { if (w == 1) cudaMemcpyAsync(pinned, d, 4096, cudaMemcpyDeviceToHost, s); cudaStreamSynchronize(s); } });
            while (!inside) {}
            std::this_thread::sleep_for(std::chrono::milliseconds(3));
            double b = us(); cudaError_t answer = cudaErrorNotReady;
            if (a == 0) answer = cudaStreamQuery(s); else if (a == 1) answer = cudaEventQuery(e); else if (a == 2) cudaEventRecord(r, s); else answer = cudaStreamQuery(other);
            took.push_back(us() - b); idle += answer == cudaSuccess; t.join(); cudaDeviceSynchronize(); cudaGetLastError();
        }
        std::sort(took.begin(), took.end());
        printf("%-46s %-34s p50 %9.1f us max %9.1f us, said idle %d of 20\n", waits[w], asks[a], took[10], took[19], idle);
    }
}
