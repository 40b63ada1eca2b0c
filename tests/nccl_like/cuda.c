/* A stand-in for libcudart and libcuda: each call is a line in the file that CUDA_LIKE_LOG names.
 * Built once for each of the two names; a device has a context when its bit is set in the byte that
 * the file CUDA_LIKE_ACTIVE begins with. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DEVICES 4

static __thread int mode;
static __thread int last_error;

int cudaPeekAtLastError(void) { return last_error; }

int cudaGetLastError(void)
{
    int found = last_error;
    last_error = 0;
    return found;
}

static int keep(int error)
{
    last_error = error ? error : last_error;
    return error;
}

static int tell(const char *call, int value)
{
    char name[16] = "", line[128];
    pthread_getname_np(pthread_self(), name, sizeof name);
    int length = snprintf(line, sizeof line, "%s %s %d\n", name, call, value);
    int file = open(getenv("CUDA_LIKE_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    int result = write(file, line, (size_t)length) == length ? 0 : 1;
    close(file);
    return result;
}

int cudaSetDevice(int device) { return tell("cudaSetDevice", device); }

int cudaThreadExchangeStreamCaptureMode(int *other)
{
    int before = mode;
    mode = *other;
    *other = before;
    return tell("cudaThreadExchangeStreamCaptureMode", mode);
}

/* The handle of an event is the ns at which the device passes it, where CUDA_LIKE_NOW names a file
 * that says how far the device is. */
int cudaEventQuery(void *event)
{
    const char *name = getenv("CUDA_LIKE_NOW");
    FILE *file = name ? fopen(name, "r") : NULL;
    long now = 0;
    int is_known = file && fscanf(file, "%ld", &now) == 1;
    if (file) {
        fclose(file);
    }
    int result = tell("cudaEventQuery", event != NULL);
    return keep(name && (!is_known || (long)event > now) ? 600 : result);
}

int cudaEventElapsedTime(float *found, void *first, void *last)
{
    *found = (float)((long)last - (long)first) / 1e6f;
    return tell("cudaEventElapsedTime", first != NULL);
}

int cudaStreamIsCapturing(void *stream, int *status)
{
    *status = (long)stream == 13;
    int result = tell("cudaStreamIsCapturing", *status);
    return keep((long)stream == 14 ? 906 : result); /* one that another capture is in the way of */
}

int cuCtxGetCurrent(void **context)
{
    *context = NULL;
    return tell("cuCtxGetCurrent", 0);
}

int cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return tell("cuDeviceGetCount", DEVICES);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
    char active = 0;
    int file = open(getenv("CUDA_LIKE_ACTIVE"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, &active, 1) < 0) {
            active = 0;
        }
        close(file);
    }
    *flags = 0;
    *is_active = active >> device & 1;
    return tell("cuDevicePrimaryCtxGetState", device);
}
