/* A stand-in for libamd_smi.so: two devices that are well. STAND_IN_FAULTS is a list such as
 * "ecc:1=3,width:0=8": what is wrong, on which device, and the answer. "hang" is a device whose
 * driver does not answer, "lost" one that it does not reach. STAND_IN_DEVICES is their number. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 2, NOT_FOUND = 31 };
static char socket_, devices[64];

static long long told(const char *what, const char *dev, long long well) {
    char key[64];
    const char *faults = getenv("STAND_IN_FAULTS");
    snprintf(key, sizeof key, "%s:%d=", what, (int)(dev - devices));
    const char *found = faults ? strstr(faults, key) : NULL;
    return found ? atoll(found + strlen(key)) : well;
}
int amdsmi_init(uint64_t flags) { return getenv("STAND_IN_NO_DRIVER") ? 31 : OK; }
int amdsmi_shut_down(void) { return OK; }
int amdsmi_get_socket_handles(uint32_t *count, void **out) {
    *count = 1;
    if (out) out[0] = &socket_;
    return OK;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **out) {
    const char *number = getenv("STAND_IN_DEVICES");
    *count = number ? (uint32_t)atoi(number) : 2;
    for (uint32_t i = 0; out && i < *count; i++) out[i] = &devices[i];
    return OK;
}
int amdsmi_get_gpu_asic_info(char *device, char *out) {
    if (told("lost", device, 0)) return NOT_FOUND;
    memset(out, 0, 800);
    strcpy(out, "AMD Instinct MI300X");
    return OK;
}
int amdsmi_get_gpu_vram_usage(char *device, uint32_t *out) { out[0] = 196592, out[1] = 1024; return OK; }
int amdsmi_get_temp_metric(char *device, int sensor, int metric, int64_t *out) {
    *out = told("heat", device, 64);
    return OK;
}
int amdsmi_get_gpu_total_ecc_count(char *device, uint64_t *out) {
    if (told("hang", device, 0)) sleep(600);
    out[0] = 5, out[1] = (uint64_t)told("ecc", device, 0), out[2] = 0;
    return OK;
}
int amdsmi_get_gpu_bad_page_info(char *device, uint32_t *count, uint64_t *out) {
    long long state = told("page", device, -1);
    *count = state >= 0 ? 2 : 0;
    for (uint32_t i = 0; out && i < *count; i++) {
        out[3 * i] = 4096 * (i + 1), out[3 * i + 1] = 4096;
        out[3 * i + 2] = i ? (uint64_t)state : 0;
    }
    return OK;
}
int amdsmi_get_gpu_process_list(char *device, uint32_t *count, char *out) {
    long long mib = told("user", device, 0);
    *count = mib ? 1 : 0;
    if (mib) {
        memset(out, 0, 256 + 16 + 64 + 24);
        strcpy(out, "python3");
        *(uint32_t *)(out + 256) = 4711;
        *(uint64_t *)(out + 256 + 16 + 64 + 16) = (uint64_t)mib << 20; /* memory_usage.vram_mem */
    }
    return OK;
}
int amdsmi_get_pcie_info(char *device, char *out) {
    memset(out, 0, 96 + 64);
    *(uint16_t *)out = 16;
    *(uint16_t *)(out + 96) = (uint16_t)told("width", device, 16);
    *(uint64_t *)(out + 96 + 16) = (uint64_t)told("replays", device, 0);
    return OK;
}
int amdsmi_is_P2P_accessible(char *device, char *other, uint8_t *out) {
    *out = told("p2p", device, told("p2p", other, 1)) != 0;
    return OK;
}
int amdsmi_get_gpu_xgmi_link_status(char *device, uint32_t *out) {
    out[0] = 7;
    for (int i = 0; i < 7; i++) out[1 + i] = i < told("down", device, 0) ? 0 : 1;
    return OK;
}
