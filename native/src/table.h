/* Numbers found by a key of some 64-bit words. */

#ifndef WHYSTUCK_TABLE_H
#define WHYSTUCK_TABLE_H

#include "common.h"

typedef struct {
    uint64_t hash;
    uint64_t *words; /* NULL where there is no entry */
    uint32_t count;
    uint32_t number;
    uint32_t flags;
} Entry;

typedef struct {
    Entry *entries;
    uint32_t room; /* 0 or a power of two */
    uint32_t used;
} Table;

/* Returns the entry of a key, NULL when there is none; good until the next one is added. */
const Entry *table_find(const Table *table, const uint64_t *words, uint32_t count);

/* Adds a key that is not there; returns false, and sets nothing, when memory is short. */
bool table_add(Table *table, const uint64_t *words, uint32_t count, uint32_t number,
               uint32_t flags);

/* Removes all. */
void table_clear(Table *table);

#endif
