/* The frames of the calling thread, innermost first.
 *
 * Python makes frame objects only when asked, which takes a tenth of a microsecond each. Where the
 * layout of the interpreter's own frames is known (3.11 to 3.13) they are read instead; each file
 * that includes this defines Py_BUILD_CORE before all else.
 */

#ifndef WHYSTUCK_FRAMES_H
#define WHYSTUCK_FRAMES_H

#include "common.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000

#include <internal/pycore_frame.h>

typedef _PyInterpreterFrame *Frame;

static inline Frame frame_complete(Frame frame)
{
    while (frame != NULL && _PyFrame_IsIncomplete(frame)) {
        frame = frame->previous;
    }
    return frame;
}

static inline Frame frame_first(void)
{
    PyThreadState *state = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
    return frame_complete(state->cframe->current_frame);
#else
    return frame_complete(state->current_frame);
#endif
}

/* Returns the caller of a frame, which is not to be used any more. */
static inline Frame frame_back(Frame frame)
{
    return frame_complete(frame->previous);
}

static inline void frame_leave(Frame frame)
{
    (void)frame;
}

/* Returns the code of a frame, which the frame holds. */
static inline PyCodeObject *frame_code(Frame frame)
{
#if PY_VERSION_HEX < 0x030D0000
    return frame->f_code;
#else
    return _PyFrame_GetCode(frame);
#endif
}

/* Returns what Python calls `f_lasti`. */
static inline int frame_at(Frame frame)
{
    return _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
}

#else

#include <frameobject.h>

typedef PyFrameObject *Frame;

static inline Frame frame_first(void)
{
    Frame frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    return frame;
}

static inline Frame frame_back(Frame frame)
{
    Frame back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    return back;
}

static inline void frame_leave(Frame frame)
{
    Py_XDECREF(frame);
}

static inline PyCodeObject *frame_code(Frame frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame holds it */
    return code;
}

static inline int frame_at(Frame frame)
{
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti < 0 ? -1 : frame->f_lasti * (int)sizeof(_Py_CODEUNIT);
#endif
}

#endif

#endif
