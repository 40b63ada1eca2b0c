/* The two hooks of one process group. */

#ifndef WHYSTUCK_HOOKED_H
#define WHYSTUCK_HOOKED_H

#include "common.h"

extern PyTypeObject Hooked_Type;

#endif
