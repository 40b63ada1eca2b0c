#include "writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#define MAX_FORMS 16384
#define MAX_THREADS 65535
#define MAX_KNOWN_THREADS 4096
#define MAX_WORDS 256
/* Of more tensors than this, the first and the last tell forms apart. */
#define MAX_TENSORS 16

static uint32_t forks_of_process;

static void count_fork(void)
{
    forks_of_process++;
}

int writer_watch_forks(void)
{
    static bool is_watched;
    if (!is_watched && pthread_atfork(NULL, NULL, count_fork) != 0) {
        PyErr_SetString(PyExc_ImportError, "forks cannot be watched");
        return -1;
    }
    is_watched = true;
    return 0;
}

bool writer_may_write(const Writer *writer)
{
    return writer->is_open && writer->forks == forks_of_process;
}

Outcome writer_give_up(Writer *writer, const char *reason)
{
    writer->is_trusted = false;
    PyObject *told = PyObject_CallMethod(writer->teacher, "give_up", "s", reason);
    if (told == NULL) {
        return after_error();
    }
    Py_DECREF(told);
    return BY_PYTHON;
}

/* Takes the truth that the teacher has told; steals it. */
static Outcome take_truth(Writer *writer, PyObject *told)
{
    int is_true = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    if (is_true < 0) {
        Outcome outcome = after_error();
        if (outcome == RAISED) {
            return outcome;
        }
    }
    return is_true == 1 ? DONE_OK : writer_give_up(writer, "torch's arguments lie elsewhere");
}

Outcome writer_check_before(Writer *writer, PyObject *args, const BeforeArgs *before)
{
    Torch *torch = &writer->torch;
    bool has_tensors = tensors_count(&before->inputs) + tensors_count(&before->outputs) > 0;
    if (torch->is_before_known && (torch->are_tensors_known || !has_tensors)) {
        return DONE_OK;
    }
    PyObject *raw = torch_tell_before(before);
    PyObject *told =
        raw == NULL ? NULL : PyObject_CallMethod(writer->teacher, "check_before", "OO", args, raw);
    Py_XDECREF(raw);
    Outcome outcome = take_truth(writer, told);
    if (outcome == DONE_OK) {
        torch->is_before_known = true;
        torch->are_tensors_known |= has_tensors;
    }
    return outcome;
}

Outcome writer_check_after(Writer *writer, PyObject *args, const AfterArgs *after)
{
    if (writer->torch.is_after_known) {
        return DONE_OK;
    }
    bool has_work = after->work != NULL;
    PyObject *raw = torch_tell_after(after);
    PyObject *told =
        raw == NULL ? NULL : PyObject_CallMethod(writer->teacher, "check_after", "OO", args, raw);
    Py_XDECREF(raw);
    Outcome outcome = take_truth(writer, told);
    if (outcome == DONE_OK) {
        /* An op without a handle does not show where handles are. */
        writer->torch.is_after_known = has_work;
        writer->torch.is_rest_known = true;
    }
    return outcome;
}

/* Writes what tells forms apart; returns how many words that are, -1 when it cannot be told. */
static int describe(const Writer *writer, const BeforeArgs *before, uint64_t *words)
{
    const Tensors *lists[2] = {&before->inputs, &before->outputs};
    bool is_rooted = writer->rooted_ops >> before->name & 1;
    int count = 0;
    words[count++] = before->name;
    words[count++] = is_rooted ? (uint64_t)before->root : 0;
    for (int list = 0; list < 2; list++) {
        Py_ssize_t total = tensors_count(lists[list]);
        Py_ssize_t stride = total > MAX_TENSORS ? total - 1 : 1;
        words[count++] = (uint64_t)total;
        for (Py_ssize_t at = 0; at < total; at += stride) {
            int more = torch_describe(&writer->torch, &lists[list]->begin[at], words + count,
                                      MAX_WORDS - 1 - count);
            if (more < 0) {
                return -1;
            }
            count += more;
        }
    }
    return count;
}

static PyObject *tell_words(const uint64_t *words, int count)
{
    PyObject *told = PyTuple_New(count);
    for (int at = 0; told != NULL && at < count; at++) {
        PyObject *word = PyLong_FromLongLong((int64_t)words[at]);
        if (word == NULL) {
            Py_CLEAR(told);
            break;
        }
        PyTuple_SET_ITEM(told, at, word);
    }
    return told;
}

static Outcome learn_form(Writer *writer, PyObject *args, const uint64_t *words, int count,
                          uint32_t *form, uint32_t *flags)
{
    PyObject *key = tell_words(words, count);
    PyObject *told =
        key == NULL ? NULL : PyObject_CallMethod(writer->teacher, "learn_form", "OO", args, key);
    Py_XDECREF(key);
    if (told == NULL) {
        return after_error();
    }
    if (told == Py_None) {
        Py_DECREF(told);
        return writer_give_up(writer, "torch's tensors are told as something else");
    }
    int is_good = PyArg_ParseTuple(told, "II", form, flags);
    Py_DECREF(told);
    if (!is_good) {
        return after_error();
    }
    if (writer->forms.used < MAX_FORMS) {
        table_add(&writer->forms, words, (uint32_t)count, *form, *flags);
    }
    return DONE_OK;
}

Outcome writer_find_form(Writer *writer, PyObject *args, const BeforeArgs *before,
                         uint32_t *form, uint32_t *flags)
{
    uint64_t words[MAX_WORDS];
    int count = describe(writer, before, words);
    if (count < 0) {
        return BY_PYTHON;
    }
    const Entry *known = table_find(&writer->forms, words, (uint32_t)count);
    if (known == NULL) {
        return learn_form(writer, args, words, count, form, flags);
    }
    *form = known->number;
    *flags = known->flags;
    return DONE_OK;
}

/* Forgets the threads; handles that wait are let go. */
static void clear_threads(Writer *writer)
{
    uint32_t used = writer->threads.used;
    table_clear(&writer->threads);
    writer->last_ident = 0;
    writer->last_waiter = NULL;
    writer->untaken_count = 0;
    for (uint32_t at = 0; writer->waiters != NULL && at < used; at++) {
        writer->waiters[at].number = 0;
        Py_CLEAR(writer->waiters[at].args);
    }
}

static Outcome learn_thread(Writer *writer, unsigned long ident, Waiter **waiter)
{
    PyObject *told = PyObject_CallMethod(writer->teacher, "learn_thread", NULL);
    unsigned long number = told == NULL ? 0 : PyLong_AsUnsignedLong(told);
    Py_XDECREF(told);
    if (PyErr_Occurred() != NULL) {
        return after_error();
    }
    if (writer->threads.used >= MAX_KNOWN_THREADS) {
        clear_threads(writer);
    }
    uint64_t word = ident;
    uint32_t at = writer->threads.used;
    if (table_find(&writer->threads, &word, 1) != NULL
        || !table_add(&writer->threads, &word, 1, at, 0)) {
        return BY_PYTHON;
    }
    *waiter = &writer->waiters[at];
    **waiter = (Waiter){.thread = number > MAX_THREADS ? MAX_THREADS : (uint32_t)number};
    return DONE_OK;
}

Outcome writer_find_thread(Writer *writer, unsigned long ident, Waiter **waiter)
{
    if (ident != writer->last_ident) {
        uint64_t word = ident;
        const Entry *known = table_find(&writer->threads, &word, 1);
        if (known != NULL) {
            writer->last_waiter = &writer->waiters[known->number];
        } else {
            Outcome outcome = learn_thread(writer, ident, &writer->last_waiter);
            if (outcome != DONE_OK) {
                writer->last_ident = 0;
                return outcome;
            }
        }
        writer->last_ident = ident;
    }
    *waiter = writer->last_waiter;
    return DONE_OK;
}

Outcome writer_find_step(Writer *writer, uint64_t *step)
{
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("optimizer_steps")) == NULL) {
        return after_error();
    }
    PyObject *steps = PyObject_GetAttr(writer->steps, name);
    long long value = steps == NULL ? -1 : PyLong_AsLongLong(steps);
    Py_XDECREF(steps);
    if (PyErr_Occurred() != NULL) {
        return after_error();
    }
    *step = (uint64_t)value;
    return DONE_OK;
}

void writer_watch(Writer *writer, uint64_t number, PyObject *args)
{
    if (!writer->watches) {
        return;
    }
    PyObject *oldest = NULL;
    if (writer->pending_count == MAX_PENDING) {
        oldest = writer->pending[writer->pending_at].args;
        writer->pending_at = (writer->pending_at + 1) % MAX_PENDING;
        writer->pending_count--;
    }
    uint32_t at = (writer->pending_at + writer->pending_count++) % MAX_PENDING;
    writer->pending[at] = (Pending){.number = number, .args = Py_XNewRef(args)};
    Py_XDECREF(oldest);
}

void writer_wait(Writer *writer, Waiter *waiter, uint64_t number, PyObject *args)
{
    PyObject *before = waiter->args;
    writer->untaken_count -= waiter->number != 0 && !waiter->is_taken;
    waiter->number = number;
    waiter->is_taken = !writer->watches;
    waiter->args = writer->watches ? Py_XNewRef(args) : NULL;
    writer->untaken_count += !waiter->is_taken;
    Py_XDECREF(before);
}

void writer_settle(Writer *writer, Waiter *waiter, int64_t time_ns)
{
    if (waiter->number == 0) {
        return;
    }
    Record *record = ring_find(&writer->ring, waiter->number);
    if (record != NULL && record->done_ns == 0) {
        record->done_ns = time_ns;
    }
    writer->untaken_count -= !waiter->is_taken;
    waiter->number = 0;
    Py_CLEAR(waiter->args);
}

Outcome writer_hasten(Writer *writer, int64_t time_ns)
{
    PyObject *told =
        PyObject_CallMethod(writer->teacher, "hasten", "L", (long long)time_ns);
    if (told == NULL) {
        return after_error();
    }
    Py_DECREF(told);
    return DONE_OK;
}

/* ------------------------------------------------------------------- what Python sees of it */

/* Appends an op to a list; steals `args`, which may be NULL. */
static int append(PyObject *taken, uint64_t number, PyObject *args)
{
    args = args == NULL ? Py_NewRef(Py_None) : args;
    PyObject *pair = Py_BuildValue("(KN)", (unsigned long long)number, args);
    int result = pair == NULL ? -1 : PyList_Append(taken, pair);
    Py_XDECREF(pair);
    return result;
}

static PyObject *take(Writer *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *taken = PyList_New(0);
    while (taken != NULL && self->pending_count > 0) {
        Pending oldest = self->pending[self->pending_at];
        self->pending[self->pending_at].args = NULL;
        self->pending_at = (self->pending_at + 1) % MAX_PENDING;
        self->pending_count--;
        if (append(taken, oldest.number, oldest.args) < 0) {
            Py_CLEAR(taken);
        }
    }
    for (uint32_t at = 0; taken != NULL && self->untaken_count > 0 && at < self->threads.used; at++) {
        Waiter *waiter = &self->waiters[at];
        if (waiter->number == 0 || waiter->is_taken) {
            continue;
        }
        PyObject *args = waiter->args;
        waiter->args = NULL;
        waiter->is_taken = true;
        self->untaken_count--;
        if (append(taken, waiter->number, args) < 0) {
            Py_CLEAR(taken);
        }
    }
    return taken;
}

static void drop_pending(Writer *self)
{
    while (self->pending != NULL && self->pending_count > 0) {
        PyObject *args = self->pending[self->pending_at].args;
        self->pending[self->pending_at].args = NULL;
        self->pending_at = (self->pending_at + 1) % MAX_PENDING;
        self->pending_count--;
        Py_XDECREF(args);
    }
}

/* Does to a new writer what its arguments say. */
static int set_up(Writer *self, PyObject *map, Py_ssize_t offset, Py_ssize_t capacity)
{
    if (PyObject_GetBuffer(map, &self->view, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    if (offset < 0 || offset % 8 != 0 || capacity < 1 || offset > self->view.len
        || capacity > (self->view.len - offset) / (Py_ssize_t)sizeof(Record)) {
        PyErr_SetString(PyExc_ValueError, "the ring does not fit into the map");
        return -1;
    }
    self->ring.records = (Record *)((char *)self->view.buf + offset);
    self->ring.capacity = (uint64_t)capacity;
    self->pending = calloc(MAX_PENDING, sizeof *self->pending);
    self->waiters = calloc(MAX_KNOWN_THREADS, sizeof *self->waiters);
    if (self->pending == NULL || self->waiters == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->forks = forks_of_process;
    self->is_open = self->is_trusted = self->watches = true;
    return 0;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"map", "offset", "capacity", "numbers", "steps", "teacher", NULL};
    PyObject *map, *numbers, *steps, *teacher;
    Py_ssize_t offset, capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnnO!OO:Writer", names, &map, &offset,
                                     &capacity, &Counter_Type, &numbers, &steps, &teacher)) {
        return NULL;
    }
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->numbers = (Counter *)Py_NewRef(numbers);
    self->steps = Py_NewRef(steps);
    self->teacher = Py_NewRef(teacher);
    if (set_up(self, map, offset, capacity) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *use_torch(Writer *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"before", "after", "cpu_path", "core_path", "known", "rooted", NULL};
    PyObject *before, *after;
    const char *cpu_path, *core_path;
    unsigned long long known, rooted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOssKK:use_torch", names, &before, &after,
                                     &cpu_path, &core_path, &known, &rooted)) {
        return NULL;
    }
    torch_close(&self->torch);
    self->torch = (Torch){0};
    if (torch_open(&self->torch, before, after, cpu_path, core_path) < 0) {
        return NULL;
    }
    self->known_ops = known;
    self->rooted_ops = rooted;
    Py_RETURN_NONE;
}

static int writer_traverse(Writer *self, visitproc visit, void *arg)
{
    Py_VISIT(self->numbers);
    Py_VISIT(self->steps);
    Py_VISIT(self->teacher);
    return 0;
}

static int writer_clear(Writer *self)
{
    self->is_open = false;
    drop_pending(self);
    clear_threads(self);
    Py_CLEAR(self->steps);
    Py_CLEAR(self->teacher);
    return 0;
}

static void writer_dealloc(Writer *self)
{
    PyObject_GC_UnTrack(self);
    writer_clear(self);
    Py_CLEAR(self->numbers);
    torch_close(&self->torch);
    sites_clear(&self->sites);
    table_clear(&self->forms);
    free(self->waiters);
    free(self->pending);
    if (self->view.obj != NULL) {
        PyBuffer_Release(&self->view);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef writer_methods[] = {
    {"take", (PyCFunction)take, METH_NOARGS,
     "take() -> [(number, args or None)]: what came back since the last call."},
    {"use_torch", (PyCFunction)(void (*)(void))use_torch, METH_VARARGS | METH_KEYWORDS,
     "use_torch(before, after, cpu_path, core_path, known, rooted): how to read torch's arguments.\n"
     "Raises ImportError where torch has not what is needed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"due_ns", T_LONGLONG, offsetof(Writer, due_ns), 0, "ops after this call teacher.hasten"},
    {"is_open", T_BOOL, offsetof(Writer, is_open), 0, "false: nothing is recorded"},
    {"is_trusted", T_BOOL, offsetof(Writer, is_trusted), READONLY,
     "false: torch is not as it should be"},
    {"watches", T_BOOL, offsetof(Writer, watches), 0, "false: no handles are kept"},
    {"open_count", T_PYSSIZET, offsetof(Writer, open_count), READONLY,
     "ops that have not come back"},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *get_pending_count(Writer *self, void *Py_UNUSED(nothing))
{
    return PyLong_FromUnsignedLong(self->pending_count + self->untaken_count);
}

static PyGetSetDef writer_getters[] = {
    {"pending_count", (getter)get_pending_count, NULL, "what take() would give", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Writer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "whystuck_native.Writer",
    .tp_doc = "Writer(map, offset, capacity, numbers, steps, teacher): writes records of ops.",
    .tp_basicsize = sizeof(Writer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = writer_new,
    .tp_traverse = (traverseproc)writer_traverse,
    .tp_clear = (inquiry)writer_clear,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_methods = writer_methods,
    .tp_members = writer_members,
    .tp_getset = writer_getters,
};
