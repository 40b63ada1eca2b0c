/* The records of the op log's file; docs/op-log.md has the layout. */

#ifndef WHYSTUCK_RING_H
#define WHYSTUCK_RING_H

#include "common.h"

enum { ASYNC = 1, P2P = 2, ISSUE_FAILED = 4, FAILED = 8, NO_END = 16, HOST = 32 };

typedef struct {
    uint64_t number;
    int64_t enqueue_ns;
    int64_t returned_ns;
    int64_t start_ns;
    int64_t pending_ns;
    int64_t done_ns;
    uint64_t seq;
    uint32_t form;
    uint32_t site;
    uint16_t group;
    uint16_t thread;
    uint32_t flags;
    uint64_t step;
    uint64_t extra;
    uint64_t number_again;
} Record;

_Static_assert(sizeof(Record) == 96, "the layout of a record is fixed");

typedef struct {
    Record *records;
    uint64_t capacity;
} Ring;

/* Writes a record where it belongs; its number is written first and last. */
void ring_put(const Ring *ring, const Record *record);

/* Returns a record that is still in the ring, else NULL. */
Record *ring_find(const Ring *ring, uint64_t number);

/* Returns the time of CLOCK_MONOTONIC. */
int64_t now_ns(void);

#endif
