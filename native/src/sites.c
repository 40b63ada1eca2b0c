/* For the layout of frames. */
#define Py_BUILD_CORE 1

#include "sites.h"

#include "frames.h"

#define MAX_FRAMES 24
/* The user's innermost frame, and callers. */
#define MAX_PLACES 6
#define MAX_SITES 8192
#define MAX_CODES 65536
#define IS_USER 1
#define IS_OTHER 2

typedef struct {
    uint64_t words[2 * MAX_PLACES]; /* code object and place, for each frame */
    uint32_t count;                 /* of words */
} Places;

static void clear_codes(Table *table, uint32_t step)
{
    for (uint32_t at = 0; at < table->room; at++) {
        Entry *entry = &table->entries[at];
        for (uint32_t word = 0; entry->words != NULL && word < entry->count; word += step) {
            Py_DECREF((PyObject *)(uintptr_t)entry->words[word]);
        }
    }
    table_clear(table);
}

void sites_clear(Sites *sites)
{
    clear_codes(&sites->codes, 1);
    clear_codes(&sites->numbers, 2);
}

/* Reads the places of a call. Returns a code object of which nobody has told yet whether it is the
 * user's, else NULL. */
static PyCodeObject *read_places(const Sites *sites, Places *places)
{
    places->count = 0;
    Frame frame = frame_first();
    for (int passed = 0; frame != NULL && passed < MAX_FRAMES;) {
        PyCodeObject *code = frame_code(frame);
        uint64_t word = (uintptr_t)code;
        if (places->count == 0) {
            const Entry *known = table_find(&sites->codes, &word, 1);
            if (known == NULL) {
                Py_INCREF(code);
                frame_leave(frame);
                return code;
            }
            if (known->number == IS_OTHER) {
                frame = frame_back(frame);
                passed++;
                continue;
            }
        }
        places->words[places->count++] = word;
        places->words[places->count++] = (uint64_t)(int64_t)frame_at(frame);
        if (places->count == 2 * MAX_PLACES) {
            break;
        }
        frame = frame_back(frame);
    }
    frame_leave(frame);
    return NULL;
}

/* Has it told whether a code object, which is passed on, is the user's. */
static Outcome learn_code(Sites *sites, PyObject *teacher, PyCodeObject *code)
{
    PyObject *told = PyObject_CallMethod(teacher, "is_user", "(O)", code);
    int is_user = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    if (is_user < 0) {
        Py_DECREF(code);
        return after_error();
    }
    if (sites->codes.used >= MAX_CODES) {
        clear_codes(&sites->codes, 1);
    }
    uint64_t word = (uintptr_t)code;
    uint32_t kind = is_user ? IS_USER : IS_OTHER;
    bool is_new = table_find(&sites->codes, &word, 1) == NULL;
    if (!is_new || !table_add(&sites->codes, &word, 1, kind, 0)) {
        Py_DECREF(code);
        return is_new ? BY_PYTHON : DONE_OK;
    }
    return DONE_OK; /* the table holds it now */
}

/* Puts places into a tuple, as the Python recorder has them. */
static PyObject *make_tuple(const Places *places)
{
    PyObject *flat = PyTuple_New(places->count);
    for (uint32_t at = 0; flat != NULL && at < places->count; at += 2) {
        PyObject *code = (PyObject *)(uintptr_t)places->words[at];
        PyObject *place = PyLong_FromLongLong((int64_t)places->words[at + 1]);
        if (place == NULL) {
            Py_DECREF(flat);
            return NULL;
        }
        PyTuple_SET_ITEM(flat, at, Py_NewRef(code));
        PyTuple_SET_ITEM(flat, at + 1, place);
    }
    return flat;
}

static Outcome learn_number(Sites *sites, PyObject *teacher, const Places *places,
                            uint32_t *number)
{
    *number = 0;
    if (sites->numbers.used >= MAX_SITES) {
        return DONE_OK;
    }
    /* Keeps the code objects of the places while Python runs. */
    PyObject *flat = make_tuple(places);
    PyObject *told = flat == NULL ? NULL : PyObject_CallMethod(teacher, "learn_site", "(O)", flat);
    unsigned long value = told == NULL ? (unsigned long)-1 : PyLong_AsUnsignedLong(told);
    Py_XDECREF(told);
    if (PyErr_Occurred() != NULL) {
        Py_XDECREF(flat);
        return after_error();
    }
    *number = (uint32_t)value;
    bool is_new = table_find(&sites->numbers, places->words, places->count) == NULL;
    if (is_new && table_add(&sites->numbers, places->words, places->count, *number, 0)) {
        for (uint32_t at = 0; at < places->count; at += 2) {
            Py_INCREF((PyObject *)(uintptr_t)places->words[at]);
        }
    }
    Py_DECREF(flat);
    return DONE_OK;
}

Outcome sites_find(Sites *sites, PyObject *teacher, Site *found)
{
    Places places;
    PyCodeObject *unknown;
    while ((unknown = read_places(sites, &places)) != NULL) {
        Outcome outcome = learn_code(sites, teacher, unknown);
        if (outcome != DONE_OK) {
            return outcome;
        }
    }
    if (places.count == 0) {
        /* A thread of torch, or code of nobody: a site without frames. */
        places.words[0] = (uintptr_t)Py_None;
        places.words[1] = 0;
        places.count = 2;
    }
    PyCodeObject *code = (PyCodeObject *)(uintptr_t)places.words[0];
    *found = (Site){.at = (int)places.words[1]};
    if ((PyObject *)code != Py_None) {
        Py_INCREF(code);
        found->code = code;
    }
    const Entry *known = table_find(&sites->numbers, places.words, places.count);
    if (known != NULL) {
        found->number = known->number;
        return DONE_OK;
    }
    Outcome outcome = learn_number(sites, teacher, &places, &found->number);
    if (outcome != DONE_OK) {
        Py_CLEAR(found->code);
    }
    return outcome;
}

PyObject *list_frames(void)
{
    PyObject *pairs = PyList_New(0);
    Frame frame = frame_first();
    while (frame != NULL && pairs != NULL) {
        PyObject *pair = Py_BuildValue("(Oi)", frame_code(frame), frame_at(frame));
        if (pair == NULL || PyList_Append(pairs, pair) < 0) {
            Py_CLEAR(pairs);
        }
        Py_XDECREF(pair);
        frame = frame_back(frame);
    }
    frame_leave(frame);
    return pairs;
}
