#include "hooked.h"

#include <structmember.h>

#include "writer.h"

/* As many ops of a group may be on their way at once. */
#define MAX_OPEN 64

typedef struct {
    int64_t op_id;
    uint64_t number; /* 0 where there is none */
    int64_t issued_ns;
    int64_t passed_ns; /* when its thread issued another op of the group, 0 before that */
    unsigned long ident;
    uint32_t thread;
    uint32_t flags;
    PyCodeObject *code; /* the user's innermost frame, held; NULL when there is none */
    int at;
} Open;

typedef struct {
    PyObject_HEAD
    Writer *writer;
    PyObject *name;
    /* What takes the ops that cannot be told here. */
    PyObject *before, *after;
    /* What looks into ops; None while nobody asked for that. */
    PyObject *look_before, *look_after;
    bool has_devices;
    Counter *ops;   /* counts the ops of the group, NULL before the first one */
    uint32_t group;
    uint32_t open_count;
    Open open[MAX_OPEN];
} Hooked;

/* --------------------------------------------------------------------- ops on their way */

static Open *slot_of(Hooked *self, int64_t op_id)
{
    return &self->open[(uint64_t)op_id % MAX_OPEN];
}

static void close_op(Hooked *self, Open *open)
{
    PyCodeObject *code = open->code;
    *open = (Open){0};
    self->open_count--;
    self->writer->open_count--;
    Py_XDECREF(code);
}

static void fail_op(Hooked *self, Open *open, int64_t time_ns)
{
    Record *record = ring_find(&self->writer->ring, open->number);
    if (record != NULL) {
        record->returned_ns = open->passed_ns != 0 ? open->passed_ns : time_ns;
        record->flags |= ISSUE_FAILED;
    }
    close_op(self, open);
}

/* A thread that issues an op is out of those before, unless a signal handler issues this one. */
static void pass_ops(Hooked *self, unsigned long ident, int64_t time_ns)
{
    for (int at = 0; self->open_count > 0 && at < MAX_OPEN; at++) {
        Open *open = &self->open[at];
        if (open->number != 0 && open->ident == ident && open->passed_ns == 0) {
            open->passed_ns = time_ns;
        }
    }
}

/* ----------------------------------------------------------------------- before an op */

static Outcome find_group(Hooked *self)
{
    if (self->ops != NULL) {
        return DONE_OK;
    }
    PyObject *told = PyObject_CallMethod(self->writer->teacher, "learn_group", "(O)", self->name);
    PyObject *number = told == NULL ? NULL : PyObject_GetAttrString(told, "number");
    PyObject *ops = number == NULL ? NULL : PyObject_GetAttrString(told, "collectives");
    unsigned long value = ops == NULL ? 0 : PyLong_AsUnsignedLong(number);
    Py_XDECREF(told);
    Py_XDECREF(number);
    if (ops == NULL || PyErr_Occurred() != NULL || !Py_IS_TYPE(ops, &Counter_Type)) {
        Py_XDECREF(ops);
        return after_error();
    }
    self->group = (uint32_t)value;
    Py_XSETREF(self->ops, (Counter *)ops);
    return DONE_OK;
}

/* Finds what a record has, but for its numbers and its thread; holds the code of `site`. */
static Outcome find_fields(Hooked *self, PyObject *args, const BeforeArgs *before, Record *record,
                           Site *site)
{
    Writer *writer = self->writer;
    Outcome outcome = writer_find_form(writer, args, before, &record->form, &record->flags);
    if (outcome == DONE_OK) {
        outcome = find_group(self);
    }
    if (outcome == DONE_OK) {
        outcome = writer_find_step(writer, &record->step);
    }
    if (outcome == DONE_OK) {
        outcome = sites_find(&writer->sites, writer->teacher, site);
    }
    record->flags |= before->is_async ? ASYNC : 0;
    /* One without tensors, too: the handle of an op on a device is neither asked nor held. */
    record->flags |= self->has_devices && (record->flags & HOST) == 0 ? NO_END : 0;
    record->group = (uint16_t)self->group;
    record->site = site->number;
    return outcome;
}

/* Writes the record of an op and keeps that it is on its way; takes the code of `site`. No Python
 * runs in here but that of a thread that is new. */
static Outcome put(Hooked *self, const BeforeArgs *before, Record *record, const Site *site)
{
    Writer *writer = self->writer;
    Open *open = slot_of(self, before->op_id);
    unsigned long ident = PyThread_get_thread_ident();
    Waiter *waiter;
    Outcome outcome = writer_find_thread(writer, ident, &waiter);
    if (outcome != DONE_OK) {
        Py_XDECREF(site->code);
        return outcome;
    }
    record->thread = (uint16_t)waiter->thread;
    if (self->open_count > 0) {
        pass_ops(self, ident, record->enqueue_ns);
        if (open->number != 0 && open->passed_ns != 0) {
            fail_op(self, open, record->enqueue_ns);
        }
        if (open->number != 0) {
            Py_XDECREF(site->code);
            return BY_PYTHON;
        }
    }
    record->number = record->number_again = counter_take(writer->numbers);
    record->seq = counter_take(self->ops);
    ring_put(&writer->ring, record);
    *open = (Open){
        .op_id = before->op_id,
        .number = record->number,
        .issued_ns = record->enqueue_ns,
        .ident = ident,
        .thread = record->thread,
        .flags = record->flags,
        .code = site->code,
        .at = site->at,
    };
    self->open_count++;
    writer->open_count++;
    /* Last: it lets go of a handle, which may be a longer way. */
    writer_settle(writer, waiter, record->enqueue_ns);
    return DONE_OK;
}

static Outcome record_before(Hooked *self, PyObject *args, int64_t time_ns, uint64_t *number)
{
    Writer *writer = self->writer;
    BeforeArgs safe;
    const BeforeArgs *before = torch_before(&writer->torch, args, &safe);
    if (before == NULL) {
        return writer_give_up(writer, "torch's arguments cannot be read");
    }
    Outcome outcome = writer_check_before(writer, args, before);
    if (outcome != DONE_OK) {
        return outcome;
    }
    if (before->name >= 64 || (writer->known_ops >> before->name & 1) == 0) {
        return NOT_OURS;
    }
    Record record = {.enqueue_ns = time_ns};
    Site site = {0};
    outcome = find_fields(self, args, before, &record, &site);
    if (outcome == DONE_OK) {
        outcome = put(self, before, &record, &site);
    }
    *number = record.number;
    return outcome;
}

static bool is_set(const PyObject *callable)
{
    return callable != NULL && callable != Py_None;
}

/* Calls the Python recorder, or what looks into an op. */
static PyObject *call_python(PyObject *callable, PyObject *args, uint64_t number)
{
    PyObject *result;
    if (number == 0) {
        result = PyObject_CallOneArg(callable, args);
    } else {
        result = PyObject_CallFunction(callable, "OK", args, (unsigned long long)number);
    }
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *before_op(Hooked *self, PyObject *args)
{
    Writer *writer = self->writer;
    if (writer == NULL || !writer_may_write(writer)) {
        Py_RETURN_NONE;
    }
    int64_t time_ns = now_ns();
    uint64_t number = 0;
    Outcome outcome =
        writer->is_trusted ? record_before(self, args, time_ns, &number) : BY_PYTHON;
    if (outcome == DONE_OK && time_ns > writer->due_ns) {
        outcome = writer_hasten(writer, time_ns) == RAISED ? RAISED : DONE_OK;
    }
    if (outcome == RAISED) {
        return NULL;
    }
    if (outcome == BY_PYTHON) {
        return call_python(self->before, args, 0);
    }
    if (outcome == DONE_OK && is_set(self->look_before)) {
        return call_python(self->look_before, args, number);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------ after an op */

/* Tells whether an op is one on a device, whose handle plays no part, and all else that torch tells
 * has been compared once. Where no op has a handle, as in jobs on NCCL, none ever shows where
 * handles are, and each op would be compared by Python. */
static bool is_without_handle(Hooked *self, const AfterArgs *after)
{
    const Open *open = slot_of(self, after->op_id);
    bool is_ours = open->number != 0 && open->op_id == after->op_id;
    bool is_on_device = (open->flags & (NO_END | HOST)) == NO_END;
    return is_ours && is_on_device && self->writer->torch.is_rest_known;
}

/* Records that an op has come back. */
static Outcome record_after(Hooked *self, PyObject *args, uint64_t *number)
{
    Writer *writer = self->writer;
    AfterArgs safe;
    const AfterArgs *after = torch_after(&writer->torch, args, &safe);
    if (after == NULL) {
        return writer_give_up(writer, "torch's arguments cannot be read");
    }
    if (after->name >= 64 || (writer->known_ops >> after->name & 1) == 0) {
        return NOT_OURS;
    }
    Outcome outcome = DONE_OK;
    if (!is_without_handle(self, after)) {
        outcome = writer_check_after(writer, args, after);
    }
    if (outcome != DONE_OK) {
        return outcome;
    }
    Open *open = slot_of(self, after->op_id);
    if (open->number == 0 || open->op_id != after->op_id) {
        return BY_PYTHON;
    }
    int64_t time_ns = now_ns();
    Record *record = ring_find(&writer->ring, open->number);
    if (record != NULL) {
        record->returned_ns = time_ns;
        record->flags |= after->work == NULL ? NO_END : 0;
    }
    bool has_end = (open->flags & NO_END) == 0 && after->work != NULL;
    bool is_waited_for = (open->flags & (ASYNC | HOST)) == HOST;
    bool is_left_alone = (open->flags & (NO_END | HOST)) == NO_END;
    unsigned long ident = open->ident;
    *number = open->number;
    close_op(self, open);
    Waiter *waiter;
    if (is_left_alone) {
        /* On a device: nobody is to look at it again. */
    } else if (!is_waited_for || writer_find_thread(writer, ident, &waiter) != DONE_OK) {
        writer_watch(writer, *number, has_end ? args : NULL);
    } else {
        writer_wait(writer, waiter, *number, has_end ? args : NULL);
    }
    if (time_ns > writer->due_ns && writer_hasten(writer, time_ns) == RAISED) {
        return RAISED;
    }
    return DONE_OK;
}

static PyObject *after_op(Hooked *self, PyObject *args)
{
    Writer *writer = self->writer;
    if (writer == NULL || !writer_may_write(writer)) {
        Py_RETURN_NONE;
    }
    uint64_t number = 0;
    Outcome outcome = writer->is_trusted ? record_after(self, args, &number) : BY_PYTHON;
    if (outcome == RAISED) {
        return NULL;
    }
    if (outcome == BY_PYTHON) {
        return call_python(self->after, args, 0);
    }
    if (outcome == DONE_OK && is_set(self->look_after)) {
        return call_python(self->look_after, args, number);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------- what Python sees of it */

static PyObject *list_open(Hooked *self, PyObject *limit)
{
    long long until_ns = PyLong_AsLongLong(limit);
    PyObject *found = PyErr_Occurred() != NULL ? NULL : PyList_New(0);
    for (int at = 0; found != NULL && at < MAX_OPEN; at++) {
        const Open *open = &self->open[at];
        if (open->number == 0 || open->issued_ns > until_ns) {
            continue;
        }
        PyObject *code = open->code == NULL ? Py_None : (PyObject *)open->code;
        PyObject *one = Py_BuildValue("(LOiIOL)", (long long)open->op_id, code, open->at,
                                      open->thread, open->passed_ns != 0 ? Py_True : Py_False,
                                      (long long)open->issued_ns);
        if (one == NULL || PyList_Append(found, one) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(one);
    }
    return found;
}

static PyObject *fail(Hooked *self, PyObject *args)
{
    long long op_id, time_ns;
    if (!PyArg_ParseTuple(args, "LL:fail", &op_id, &time_ns)) {
        return NULL;
    }
    Open *open = slot_of(self, op_id);
    if (open->number != 0 && open->op_id == op_id) {
        fail_op(self, open, time_ns);
    }
    Py_RETURN_NONE;
}

static PyObject *hooked_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"writer", "name", "has_devices", "before", "after", NULL};
    PyObject *writer, *name, *before, *after;
    int has_devices;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UpOO:Hooked", names, &Writer_Type, &writer,
                                     &name, &has_devices, &before, &after)) {
        return NULL;
    }
    Hooked *self = (Hooked *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->writer = (Writer *)Py_NewRef(writer);
        self->name = Py_NewRef(name);
        self->has_devices = has_devices != 0;
        self->before = Py_NewRef(before);
        self->after = Py_NewRef(after);
        self->look_before = Py_NewRef(Py_None);
        self->look_after = Py_NewRef(Py_None);
    }
    return (PyObject *)self;
}

static int hooked_traverse(Hooked *self, visitproc visit, void *arg)
{
    Py_VISIT(self->writer);
    Py_VISIT(self->before);
    Py_VISIT(self->after);
    Py_VISIT(self->look_before);
    Py_VISIT(self->look_after);
    return 0;
}

static int hooked_clear(Hooked *self)
{
    for (int at = 0; self->writer != NULL && at < MAX_OPEN; at++) {
        if (self->open[at].number != 0) {
            close_op(self, &self->open[at]);
        }
    }
    Py_CLEAR(self->writer);
    Py_CLEAR(self->ops);
    Py_CLEAR(self->before);
    Py_CLEAR(self->after);
    Py_CLEAR(self->look_before);
    Py_CLEAR(self->look_after);
    return 0;
}

static void hooked_dealloc(Hooked *self)
{
    PyObject_GC_UnTrack(self);
    hooked_clear(self);
    Py_CLEAR(self->name);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef hooked_methods[] = {
    {"before", (PyCFunction)before_op, METH_O, "The hook of torch before an op."},
    {"after", (PyCFunction)after_op, METH_O, "The hook of torch after an op."},
    {"list_open", (PyCFunction)list_open, METH_O,
     "list_open(until_ns) -> [(op_id, code or None, place, thread, is_passed, issued_ns)]: ops that\n"
     "were issued until then and have not come back."},
    {"fail", (PyCFunction)fail, METH_VARARGS,
     "fail(op_id, time_ns): the op has raised, if it has not come back by now."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef hooked_members[] = {
    {"name", T_OBJECT_EX, offsetof(Hooked, name), READONLY, "of the group"},
    {"look_before", T_OBJECT, offsetof(Hooked, look_before), 0, "called with args and number"},
    {"look_after", T_OBJECT, offsetof(Hooked, look_after), 0, "called with args and number"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject Hooked_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "whystuck_native.Hooked",
    .tp_doc = "Hooked(writer, name, has_devices, before, after): the two hooks of a group.",
    .tp_basicsize = sizeof(Hooked),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = hooked_new,
    .tp_traverse = (traverseproc)hooked_traverse,
    .tp_clear = (inquiry)hooked_clear,
    .tp_dealloc = (destructor)hooked_dealloc,
    .tp_methods = hooked_methods,
    .tp_members = hooked_members,
};
