/* A stand-in for libnvidia-ml.so.1, for machines without a GPU: the functions that we call, with
 * fixed answers. stand_in_* are for tests: they set answers and errors. In a process that a test
 * cannot call into, variables do: STAND_IN_PROCESS is a pid on device 0, STAND_IN_LOST the number of
 * a device that is lost, STAND_IN_HANGS and STAND_IN_CRASHES name a function. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };

typedef struct device { int index; int mig_slot; } device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct {
    unsigned field, scope; int64_t timestamp, latency; unsigned type, ret;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} field_value;
typedef struct { device *dev; unsigned long long type, data; unsigned gi, ci; } event;
typedef struct { unsigned id, ret; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; struct gpm *one, *two; gpm_metric metrics[]; } gpm_get;
struct gpm { int device, instance; unsigned at; };

#define DEVICES 16
#define FAILURES 64
static device devices[DEVICES], migs[DEVICES];
static unsigned count = 2, looks, gpm_used, events_ready, process_count, mig_mode, has_gpm = 1;
static unsigned long long link_kib = 1000;
static process processes[8];
static struct { char name[64]; int device; ret_t code; } failures[FAILURES];
static unsigned failure_count, calls;
static struct gpm samples[64];

void stand_in_count(unsigned value) { count = value; }
void stand_in_gpm(unsigned value) { has_gpm = value; }
void stand_in_mig(unsigned value) { mig_mode = value; }
void stand_in_events(unsigned value) { events_ready = value; }
void stand_in_links(unsigned long long value) { link_kib = value; }
unsigned stand_in_calls(void) { return calls; }
unsigned stand_in_gpm_buffers(void) { return gpm_used; }
void stand_in_process(unsigned pid, unsigned long long used) {
    processes[process_count++] = (process){pid, used, 0xFFFFFFFF, 0xFFFFFFFF};
}
void stand_in_fail(const char *name, int device, int code) {
    strncpy(failures[failure_count].name, name, 63);
    failures[failure_count].device = device;
    failures[failure_count++].code = code;
}
void stand_in_mend(void) { failure_count = 0; }

static int is_named(const char *variable, const char *name) {
    const char *value = getenv(variable);
    return value && !strcmp(value, name);
}
static ret_t check(const char *name, int device) {
    calls++;
    while (is_named("STAND_IN_HANGS", name)) pause();
    if (is_named("STAND_IN_CRASHES", name)) abort();
    const char *lost = getenv("STAND_IN_LOST");
    if (lost && atoi(lost) == device && !strcmp(name, "nvmlDeviceGetUtilizationRates")) return 15;
    for (unsigned i = 0; i < failure_count; i++)
        if ((!strcmp(failures[i].name, name) || !strcmp(failures[i].name, "*")) &&
            (failures[i].device == device || failures[i].device < 0))
            return failures[i].code;
    return OK;
}
#define CHECK(dev) do { ret_t bad = check(__func__, (dev)); if (bad) return bad; } while (0)

ret_t nvmlInitWithFlags(unsigned flags) {
    CHECK(-2);
    const char *pid = getenv("STAND_IN_PROCESS");
    if (pid) stand_in_process((unsigned)atoi(pid), 1ull << 30);
    return OK;
}
ret_t nvmlShutdown(void) { CHECK(-2); return OK; }
const char *nvmlErrorString(ret_t code) { return "told by the stand-in"; }
ret_t nvmlDeviceGetCount_v2(unsigned *out) { CHECK(-2); *out = count; return OK; }
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    CHECK((int)index);
    if (index >= count) return NOT_FOUND;
    devices[index].index = (int)index;
    devices[index].mig_slot = -1;
    *out = &devices[index];
    return OK;
}
ret_t nvmlDeviceGetUUID(device *dev, char *out, unsigned size) {
    CHECK(dev->index);
    strncpy(out, dev->mig_slot < 0 ? "GPU-0000" : "MIG-0000", size);
    out[4] = (char)('0' + dev->index);
    if (dev->mig_slot >= 0) out[7] = (char)('0' + dev->mig_slot);
    return OK;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } pci;
ret_t nvmlDeviceGetPciInfo_v3(device *dev, pci *out) {
    CHECK(dev->index);
    memset(out, 0, sizeof *out);
    strcpy(out->text, "00000000:9B:00.0");
    out->text[10] = (char)('B' + dev->index);
    return OK;
}
ret_t nvmlDeviceGetUtilizationRates(device *dev, utilization *out) {
    CHECK(dev->index);
    *out = (utilization){87, 31};
    return OK;
}
ret_t nvmlDeviceGetMemoryInfo(device *dev, memory *out) {
    CHECK(dev->index);
    *out = dev->mig_slot < 0 ? (memory){80ull << 30, 60ull << 30, 20ull << 30}
                             : (memory){10ull << 30, 7ull << 30, 3ull << 30};
    return OK;
}
ret_t nvmlDeviceGetPowerUsage(device *dev, unsigned *out) { CHECK(dev->index); *out = 412500; return OK; }
ret_t nvmlDeviceGetEnforcedPowerLimit(device *dev, unsigned *out) { CHECK(dev->index); *out = 700000; return OK; }
ret_t nvmlDeviceGetTotalEnergyConsumption(device *dev, unsigned long long *out) {
    CHECK(dev->index);
    *out = 5000000123ull;
    return OK;
}
ret_t nvmlDeviceGetTemperature(device *dev, unsigned sensor, unsigned *out) { CHECK(dev->index); *out = 61; return OK; }
ret_t nvmlDeviceGetClockInfo(device *dev, unsigned kind, unsigned *out) {
    CHECK(dev->index);
    *out = kind == 1 ? 1755 : 2619;
    return OK;
}
ret_t nvmlDeviceGetMaxClockInfo(device *dev, unsigned kind, unsigned *out) { CHECK(dev->index); *out = 1980; return OK; }
ret_t nvmlDeviceGetCurrentClocksEventReasons(device *dev, unsigned long long *out) {
    CHECK(dev->index);
    *out = 0x04 | 0x40;
    return OK;
}
ret_t nvmlDeviceGetCurrentClocksThrottleReasons(device *dev, unsigned long long *out) {
    CHECK(dev->index);
    *out = 0x20;
    return OK;
}
ret_t nvmlDeviceGetTotalEccErrors(device *dev, unsigned kind, unsigned counter, unsigned long long *out) {
    CHECK(dev->index);
    *out = kind == 0 ? 12 : 1;
    return OK;
}
ret_t nvmlDeviceGetRemappedRows(device *dev, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    CHECK(dev->index);
    *c = 3, *u = 1, *pending = 1, *failed = 0;
    return OK;
}
ret_t nvmlDeviceGetFieldValues(device *dev, int wanted, field_value *out) {
    CHECK(dev->index);
    for (int i = 0; i < wanted; i++) {
        out[i].ret = OK;
        if (out[i].field == 82) out[i].type = 1, out[i].value.ui = 74;
        else if ((out[i].field == 138 || out[i].field == 139) && out[i].scope == 0xFFFFFFFF)
            out[i].type = 3, out[i].value.ull = link_kib;
        else out[i].ret = NOT_SUPPORTED;
    }
    return OK;
}
ret_t nvmlDeviceGetPcieThroughput(device *dev, unsigned counter, unsigned *out) {
    CHECK(dev->index);
    *out = counter == 0 ? 2048 : 4096;
    return OK;
}
ret_t nvmlDeviceGetComputeRunningProcesses_v3(device *dev, unsigned *size, process *out) {
    CHECK(dev->index);
    unsigned here = dev->index == 0 ? process_count : 0;
    if (*size < here) { *size = here; return TOO_SMALL; }
    memcpy(out, processes, here * sizeof(process));
    *size = here;
    return OK;
}
ret_t nvmlDeviceGetMigMode(device *dev, unsigned *now, unsigned *later) {
    CHECK(dev->index);
    *now = *later = dev->index == 1 ? mig_mode : 0;
    return OK;
}
ret_t nvmlDeviceGetMaxMigDeviceCount(device *dev, unsigned *out) { CHECK(dev->index); *out = 7; return OK; }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(device *dev, unsigned slot, device **out) {
    CHECK(dev->index);
    if (slot != 0 && slot != 2) return NOT_FOUND;
    migs[slot] = (device){dev->index, (int)slot};
    *out = &migs[slot];
    return OK;
}
ret_t nvmlDeviceGetGpuInstanceId(device *dev, unsigned *out) { CHECK(dev->index); *out = 7u + dev->mig_slot; return OK; }

ret_t nvmlEventSetCreate(void **out) { CHECK(-2); static int set; *out = &set; return OK; }
ret_t nvmlDeviceRegisterEvents(device *dev, unsigned long long types, void *set) { CHECK(dev->index); return OK; }
ret_t nvmlEventSetWait_v2(void *set, event *out, unsigned timeout_ms) {
    CHECK(-2);
    if (timeout_ms) return 999; /* a call that waits is wrong */
    if (!events_ready) return TIMEOUT;
    events_ready--;
    *out = (event){&devices[0], 8, 79, 0, 0};
    return OK;
}

ret_t nvmlGpmQueryDeviceSupport(device *dev, unsigned *versioned) {
    CHECK(dev->index);
    versioned[1] = has_gpm;
    return OK;
}
ret_t nvmlGpmSampleAlloc(struct gpm **out) { CHECK(-2); *out = &samples[gpm_used++]; return OK; }
ret_t nvmlGpmSampleFree(struct gpm *one) { CHECK(-2); gpm_used--; return OK; }
ret_t nvmlGpmSampleGet(device *dev, struct gpm *out) {
    CHECK(dev->index);
    *out = (struct gpm){dev->index, -1, ++looks};
    return OK;
}
ret_t nvmlGpmMigSampleGet(device *dev, unsigned instance, struct gpm *out) {
    CHECK(dev->index);
    *out = (struct gpm){dev->index, (int)instance, ++looks};
    return OK;
}
ret_t nvmlGpmMetricsGet(gpm_get *get) {
    CHECK(get->one->device);
    /* Two looks at the same thing, the earlier one first. */
    if (get->version != 1 || get->one->at >= get->two->at || get->one->device != get->two->device ||
        get->one->instance != get->two->instance)
        return 2;
    for (unsigned i = 0; i < get->count; i++) {
        gpm_metric *one = &get->metrics[i];
        one->ret = one->id == 11 ? NOT_SUPPORTED : OK;
        one->value = one->id < 20 ? 10.0 * one->id / 2 : 100.0 * one->id;
        if (one->id == 12) one->value = 0.0 / 0.0;
    }
    return OK;
}
