// Verbs of program.c about virtual memory management: numbered handles, and numbered areas of reserved addresses.
enum { kHandles = 1024, kAreas = 16 };
static CUmemGenericAllocationHandle handles[kHandles];
static struct {
    CUdeviceptr start;
    size_t bytes;
} areas[kAreas];

static CUresult create_physical(CUmemGenericAllocationHandle* handle, size_t bytes, unsigned types, unsigned usage) {
    CUmemAllocationProp p = {0};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.requestedHandleTypes = (CUmemAllocationHandleType)types;
    p.allocFlags.gpuDirectRDMACapable = 1;
    p.allocFlags.usage = (unsigned short)usage;
    return cuMemCreate(handle, bytes, &p, 0);
}

static CUresult give_access(CUdeviceptr at, size_t bytes, unsigned flags) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, (CUmemAccess_flags)flags};
    return cuMemSetAccess(at, bytes, &access, 1);
}

// So many times, as two threads: memory comes, is used and goes, and in one of them it is to stay while it is there.
typedef struct {
    uint64_t rounds;
    int stays;
} Rounds;
static void* come_and_go(void* argument) {
    const Rounds* rounds = argument;
    const size_t bytes = 2 << 20;
    CUdeviceptr at;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    for (uint64_t i = 0; i < rounds->rounds; ++i) {
        CUmemGenericAllocationHandle handle;
        int fd = -1;
        MUST(create_physical(&handle, bytes, 0, 0));
        MUST(cuMemMap(at, bytes, 0, handle, 0));
        MUST(give_access(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        if (rounds->stays) cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        MUST(cuMemsetD8(at, 1, bytes));
        MUST(cuMemUnmap(at, bytes));
        MUST(cuMemRelease(handle));
    }
    MUST(cuMemAddressFree(at, bytes));
    return NULL;
}

static int virtual_verb(const char* line) {
    char verb[32];
    uint64_t a = 0, b = 0, c = 0, d = 0;
    CUresult r = CUDA_SUCCESS;
    sscanf(line, "%31s %lu %lu %lu %lu", verb, &a, &b, &c, &d);
    CUmemGenericAllocationHandle* handle = &handles[a % kHandles];
    const CUdeviceptr start = areas[a % kAreas].start;
    if (!strcmp(verb, "vcreate")) {  // handle a of b bytes, that may be exported as c says, for usage d
        r = create_physical(handle, b, (unsigned)c, (unsigned)d);
    } else if (!strcmp(verb, "vrelease")) {
        r = cuMemRelease(*handle);
    } else if (!strcmp(verb, "vreserve")) {
        areas[a % kAreas].bytes = b;
        r = cuMemAddressReserve(&areas[a % kAreas].start, b, 0, 0, 0);
    } else if (!strcmp(verb, "vunreserve")) {
        r = cuMemAddressFree(start, areas[a % kAreas].bytes);
    } else if (!strcmp(verb, "vmap")) {  // in area a at b: c bytes of handle d
        r = cuMemMap(start + b, c, 0, handles[d % kHandles], 0);
    } else if (!strcmp(verb, "vunmap")) {
        r = cuMemUnmap(start + b, c);
    } else if (!strcmp(verb, "vaccess")) {  // in area a at b, c bytes: d
        r = give_access(start + b, c, (unsigned)d);
    } else if (!strcmp(verb, "vpiece")) {  // as piece d: what is in area a at b, c bytes
        Piece* p = &pieces[d % kMost];
        p->address = start + b;
        p->bytes = c;
    } else if (!strcmp(verb, "vforget")) {  // piece a
        pieces[a % kMost].address = 0;
    } else if (!strcmp(verb, "vretain")) {  // of area a at b, as handle c
        r = cuMemRetainAllocationHandle(&handles[c % kHandles], (void*)(start + b));
    } else if (!strcmp(verb, "vexport")) {
        int fd = -1;
        r = cuMemExportToShareableHandle(&fd, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (r == CUDA_SUCCESS) {  // what comes back is the same memory: handle b
            r = cuMemImportFromShareableHandle(&handles[b % kHandles], (void*)(intptr_t)fd,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            close(fd);
        }
    } else if (!strcmp(verb, "vfork")) {  // the child can neither map, release nor ask
        const pid_t child = fork();
        if (child == 0) {
            unsigned long long flags = 0;
            CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
            int bad = cuMemGetAccess(&flags, &where, start) == CUDA_SUCCESS;
            bad += cuMemRelease(*handle) == CUDA_SUCCESS;
            bad += cuMemUnmap(start, areas[a % kAreas].bytes) == CUDA_SUCCESS;
            _exit(bad);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("%d\n", status);
        return 1;
    } else if (!strcmp(verb, "vgetaccess")) {
        unsigned long long flags = 99;
        CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
        r = cuMemGetAccess(&flags, &where, start + b);
        printf("%d %llu\n", r, flags);
        return 1;
    } else if (!strcmp(verb, "vsame")) {
        printf("%d\n", *handle == handles[b % kHandles]);
        return 1;
    } else if (!strcmp(verb, "vproperties")) {
        CUmemAllocationProp p = {0};
        r = cuMemGetAllocationPropertiesFromHandle(&p, *handle);
        printf("%d %d %d %d\n", r, p.location.type == CU_MEM_LOCATION_TYPE_DEVICE && p.location.id == device,
               (int)p.requestedHandleTypes, p.allocFlags.gpuDirectRDMACapable);
        return 1;
    } else if (!strcmp(verb, "vpointer")) {  // flags of access, whether there is a context, what it may be exported as
        unsigned flags = 99;
        CUcontext in = (CUcontext)1;
        unsigned long long types = 99;
        CUresult r1 = cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, start + b);
        CUresult r2 = cuPointerGetAttribute(&in, CU_POINTER_ATTRIBUTE_CONTEXT, start + b);
        CUresult r3 = cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, start + b);
        printf("%d %u %d %d %d %llu\n", r1, flags, r2, in != NULL, r3, types);
        return 1;
    } else if (!strcmp(verb, "vmulticast")) {  // b bytes of handle a, and of what is in area c
        r = cuMulticastBindMem(1, 0, *handle, 0, b, 0);
        CUresult r2 = cuMulticastBindAddr(1, 0, areas[c % kAreas].start, b, 0);
        printf("%d %d\n", r, r2);
        return 1;
    } else if (!strcmp(verb, "varray")) {  // b bytes of handle a
        CUarrayMapInfo info = {0};
        info.resourceType = CU_RESOURCE_TYPE_ARRAY;
        info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
        info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
        info.memHandle.memHandle = *handle;
        r = cuMemMapArrayAsync(&info, 1, stream);
        if (info.memHandle.memHandle != *handle) r = CUDA_ERROR_UNKNOWN;
    } else if (!strcmp(verb, "vrounds")) {
        pthread_t threads[2];
        Rounds rounds[2] = {{a, 0}, {a, 1}};
        for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, come_and_go, &rounds[i]);
        for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    } else if (!strcmp(verb, "vcurrent")) {  // 0: no context is current any more, else the first
        r = cuCtxSetCurrent(a ? context : NULL);
    } else if (!strcmp(verb, "vfile")) {  // of area a at b, c bytes
        int fd = -1;
        r = cuMemGetHandleForAddressRange(&fd, start + b, c, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    } else {
        return 0;
    }
    printf("%d\n", r);
    return 1;
}
