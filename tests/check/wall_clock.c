/* A wall clock that is off by $CLOCK_OFFSET_S seconds. All other clocks, and all waits, stay as they
   are: `faketime` with its own clock for durations alone makes `time.sleep` fail on Python 3.11. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t find_offset(void) {
    const char *text = getenv("CLOCK_OFFSET_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += find_offset();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    int code = clock_gettime(CLOCK_REALTIME, &found);
    if (!code && now) {
        now->tv_sec = found.tv_sec;
        now->tv_usec = found.tv_nsec / 1000;
    }
    return code;
}

time_t time(time_t *place) {
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return (time_t)-1;
    if (place)
        *place = found.tv_sec;
    return found.tv_sec;
}
