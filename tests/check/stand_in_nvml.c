/* A stand-in for libnvidia-ml.so.1: two devices that are well. STAND_IN_FAULTS is a list such as
 * "recovery:1=2,width:0=8": what is wrong, on which device, and the answer. "hang" is a device whose
 * driver does not answer, "lost" one that it does not reach. STAND_IN_DEVICES is their number. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
enum { OK = 0, NOT_SUPPORTED = 3, LOST = 15 };
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct {
    unsigned field, scope; int64_t timestamp, latency; unsigned type, ret;
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_value;
static int numbers[64];

static long long told(const char *what, const int *dev, long long well) {
    char key[64];
    const char *faults = getenv("STAND_IN_FAULTS");
    snprintf(key, sizeof key, "%s:%d=", what, *dev);
    const char *found = faults ? strstr(faults, key) : NULL;
    return found ? atoll(found + strlen(key)) : well;
}
ret_t nvmlInitWithFlags(unsigned flags) {
    for (int i = 0; i < 64; i++) numbers[i] = i;
    return getenv("STAND_IN_NO_DRIVER") ? 9 : OK;
}
ret_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(ret_t code) { return code == 9 ? "Driver Not Loaded" : "told by the stand-in"; }
ret_t nvmlDeviceGetCount_v2(unsigned *out) {
    const char *count = getenv("STAND_IN_DEVICES");
    *out = count ? (unsigned)atoi(count) : 2;
    return OK;
}
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, int **out) {
    *out = &numbers[index];
    return told("lost", *out, 0) ? LOST : OK;
}
ret_t nvmlDeviceGetName(int *dev, char *out, unsigned size) {
    while (told("hang", dev, 0)) pause();
    strncpy(out, "NVIDIA H100 80GB HBM3", size);
    return OK;
}
ret_t nvmlDeviceGetMemoryInfo(int *dev, memory *out) {
    *out = (memory){80000000000ull, 80000000000ull, 0};
    return OK;
}
ret_t nvmlDeviceGetFieldValues(int *dev, int wanted, field_value *out) {
    for (int i = 0; i < wanted; i++) {
        out[i].ret = OK, out[i].type = 1;
        out[i].value.ui = (unsigned)told("recovery", dev, 0);
    }
    return OK;
}
ret_t nvmlDeviceGetTotalEccErrors(int *dev, unsigned kind, unsigned counter, unsigned long long *out) {
    *out = (unsigned long long)told("ecc", dev, 0);
    return OK;
}
ret_t nvmlDeviceGetRemappedRows(int *dev, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    *c = 0, *u = 1, *pending = (unsigned)told("pending", dev, 0), *failed = (unsigned)told("failed", dev, 0);
    return OK;
}
ret_t nvmlDeviceGetCurrentClocksEventReasons(int *dev, unsigned long long *out) {
    *out = (unsigned long long)told("reasons", dev, 0x05); /* idle, and the power cap */
    return OK;
}
ret_t nvmlDeviceGetTemperature(int *dev, unsigned sensor, unsigned *out) {
    *out = (unsigned)told("heat", dev, 45);
    return OK;
}
ret_t nvmlDeviceGetComputeRunningProcesses_v3(int *dev, unsigned *size, process *out) {
    long long mib = told("user", dev, 0);
    if (mib && *size < 1) { *size = 1; return 7; }
    *size = mib ? 1 : 0;
    if (mib) *out = (process){1, (unsigned long long)mib << 20, 0, 0};
    return OK;
}
ret_t nvmlDeviceGetCurrPcieLinkWidth(int *dev, unsigned *out) { *out = (unsigned)told("width", dev, 16); return OK; }
ret_t nvmlDeviceGetMaxPcieLinkWidth(int *dev, unsigned *out) { *out = 16; return OK; }
ret_t nvmlDeviceGetPcieReplayCounter(int *dev, unsigned *out) { *out = (unsigned)told("replays", dev, 0); return OK; }
ret_t nvmlDeviceGetP2PStatus(int *dev, int *other, unsigned kind, unsigned *out) {
    *out = (unsigned)told("p2p", dev, told("p2p", other, 0));
    return kind ? NOT_SUPPORTED : OK;
}
ret_t nvmlDeviceGetNvLinkState(int *dev, unsigned link, unsigned *out) {
    if (link >= 18) return NOT_SUPPORTED;
    *out = link < told("links", dev, 18);
    return OK;
}
