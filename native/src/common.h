/* What all files of the extension share. */

#ifndef WHYSTUCK_COMMON_H
#define WHYSTUCK_COMMON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "whystuck-native needs the interpreter lock; a free-threading Python records without it"
#endif
#ifdef PYPY_VERSION
#error "whystuck-native is for CPython"
#endif
#if !defined(__linux__) || UINTPTR_MAX != UINT64_MAX
#error "whystuck-native is for 64-bit Linux"
#endif

/* The result of a step on the way to a record. */
typedef enum {
    DONE_OK,     /* go on */
    NOT_OURS,    /* the op is recorded elsewhere, or not at all */
    BY_PYTHON,   /* the Python recorder takes this op */
    RAISED,      /* what must reach the job, such as a KeyboardInterrupt, is set */
} Outcome;

/* Drops an error of ours; what is no Exception must reach the job. */
static inline Outcome after_error(void)
{
    if (PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        return RAISED;
    }
    PyErr_Clear();
    return BY_PYTHON;
}

#endif
