/* A stand-in for libamd_smi.so, for machines without a GPU of AMD: two devices with fixed answers.
 * All functions that are not here say "not supported"; the test adds them. */
#include <stdint.h>
#include <string.h>
#include <stdlib.h>

enum { OK = 0, NOT_SUPPORTED = 2, NO_PERM = 10 };
static char socket_, devices[2];
static int index_of(char *device) { return (int)(device - devices); }

int amdsmi_init(uint64_t flags) { return getenv("STAND_IN_NO_DRIVER") ? 31 : OK; }
int amdsmi_get_socket_handles(uint32_t *count, void **out) {
    *count = 1;
    if (out) out[0] = &socket_;
    return OK;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **out) {
    *count = 2;
    if (out) out[0] = &devices[0], out[1] = &devices[1];
    return OK;
}
int amdsmi_get_gpu_device_uuid(char *device, uint32_t *size, char *out) {
    strcpy(out, index_of(device) ? "uuid-1" : "uuid-0");
    return OK;
}
int amdsmi_get_gpu_activity(char *device, uint32_t *out) {
    out[0] = index_of(device) ? 0xFFFF : 87;
    out[1] = 31;
    return OK;
}
int amdsmi_get_gpu_vram_usage(char *device, uint32_t *out) { out[0] = 196592, out[1] = 1024; return OK; }
int amdsmi_get_clock_info(char *device, int kind, uint32_t *out) {
    out[0] = kind ? 900 : 1700, out[1] = 100, out[2] = 2100;
    return OK;
}
int amdsmi_get_temp_metric(char *device, int sensor, int metric, int64_t *out) {
    if (index_of(device)) return NO_PERM;
    *out = sensor == 1 ? 64 : 51;
    return OK;
}
int amdsmi_get_power_info(char *device, uint64_t *out) {
    memset(out, 0, 48);
    ((uint32_t *)out)[2] = 512; /* current_socket_power */
    return OK;
}
int amdsmi_get_power_cap_info(char *device, uint32_t sensor, uint64_t *out) { out[0] = 750000000; return OK; }
int amdsmi_get_energy_count(char *device, uint64_t *count, float *resolution, uint64_t *time) {
    *count = 2000000, *resolution = 15.5f, *time = 1;
    return OK;
}
int amdsmi_get_gpu_total_ecc_count(char *device, uint64_t *out) { out[0] = 5, out[1] = 0, out[2] = 0; return OK; }
int amdsmi_get_gpu_process_list(char *device, uint32_t *count, char *out) {
    const char *pid = getenv("STAND_IN_PID");
    *count = pid && !index_of(device) ? 1 : 0;
    if (*count) {
        memset(out, 0, 256 + 16 + 64 + 24);
        strcpy(out, "python3");
        *(uint32_t *)(out + 256) = (uint32_t)atoi(pid);
        *(uint64_t *)(out + 256 + 16 + 64 + 16) = 3ull << 30; /* memory_usage.vram_mem */
    }
    return OK;
}
