// The memory of the fake driver, and what tests may ask of it beside the driver API.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int count(const char* name);       // a call of the function of this name
int fake_calls(const char* name);  // how many there were

uint64_t fake_held(void);                   // bytes the driver holds, everything but contexts
void fake_fail_next(const char* function);  // its next call answers CUDA_ERROR_UNKNOWN and changes nothing
void fake_shrink_pools(void);               // as the driver does when a stream is synchronised
void fake_set_graph_memory(uint64_t bytes);
void fake_openers_meet(int threads);  // so many have opened a handle before one of them goes on
int fake_pool_reads_while_capturing(void);

#ifdef __cplusplus
}
#endif
