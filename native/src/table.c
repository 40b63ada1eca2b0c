#include "table.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 64

static uint64_t hash_of(const uint64_t *words, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t at = 0; at < count; at++) {
        hash = (hash ^ words[at]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    return hash;
}

static Entry *place_of(const Table *table, const uint64_t *words, uint32_t count, uint64_t hash)
{
    uint32_t mask = table->room - 1;
    for (uint32_t at = (uint32_t)hash & mask;; at = (at + 1) & mask) {
        Entry *entry = &table->entries[at];
        if (entry->words == NULL) {
            return entry;
        }
        if (entry->hash == hash && entry->count == count
            && memcmp(entry->words, words, count * sizeof *words) == 0) {
            return entry;
        }
    }
}

const Entry *table_find(const Table *table, const uint64_t *words, uint32_t count)
{
    if (table->room == 0) {
        return NULL;
    }
    Entry *entry = place_of(table, words, count, hash_of(words, count));
    return entry->words == NULL ? NULL : entry;
}

static bool grow(Table *table)
{
    Table larger = {.room = table->room ? 2 * table->room : FIRST_ROOM, .used = table->used};
    larger.entries = calloc(larger.room, sizeof *larger.entries);
    if (larger.entries == NULL) {
        return false;
    }
    for (uint32_t at = 0; at < table->room; at++) {
        Entry *old = &table->entries[at];
        if (old->words != NULL) {
            *place_of(&larger, old->words, old->count, old->hash) = *old;
        }
    }
    free(table->entries);
    *table = larger;
    return true;
}

bool table_add(Table *table, const uint64_t *words, uint32_t count, uint32_t number,
               uint32_t flags)
{
    if (2 * (table->used + 1) > table->room && !grow(table)) {
        return false;
    }
    uint64_t hash = hash_of(words, count);
    Entry *entry = place_of(table, words, count, hash);
    if (entry->words != NULL) {
        entry->number = number; /* another thread has learned it meanwhile */
        entry->flags = flags;
        return true;
    }
    uint64_t *copy = malloc(count * sizeof *words);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, words, count * sizeof *words);
    *entry = (Entry){.hash = hash, .words = copy, .count = count, .number = number, .flags = flags};
    table->used++;
    return true;
}

void table_clear(Table *table)
{
    for (uint32_t at = 0; at < table->room; at++) {
        free(table->entries[at].words);
    }
    free(table->entries);
    *table = (Table){0};
}
