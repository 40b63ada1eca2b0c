/* Call sites: where in the user's code an op is issued, as a number that is found fast. */

#ifndef WHYSTUCK_SITES_H
#define WHYSTUCK_SITES_H

#include "common.h"
#include "table.h"

typedef struct {
    Table codes;   /* by code object, which is held: 1 when it is the user's, else 2 */
    Table numbers; /* by code objects, which are held, and places in them */
} Sites;

typedef struct {
    uint32_t number;
    PyCodeObject *code; /* the user's innermost frame, held; NULL when there is none */
    int at;
} Site;

/* Finds the number of the place that the calling thread is at; `teacher` tells what is new. */
Outcome sites_find(Sites *sites, PyObject *teacher, Site *found);

void sites_clear(Sites *sites);

/* Returns code object and place of each frame of the calling thread, as a list of pairs. */
PyObject *list_frames(void);

#endif
