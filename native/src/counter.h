/* An iterator that counts; Python and C take numbers from the same one. */

#ifndef WHYSTUCK_COUNTER_H
#define WHYSTUCK_COUNTER_H

#include "common.h"

typedef struct {
    PyObject_HEAD
    uint64_t next;
} Counter;

extern PyTypeObject Counter_Type;

static inline uint64_t counter_take(Counter *counter)
{
    return counter->next++;
}

#endif
