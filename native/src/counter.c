#include "counter.h"

static PyObject *counter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"start", NULL};
    unsigned long long start = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|K:Counter", names, &start)) {
        return NULL;
    }
    Counter *self = (Counter *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->next = start;
    }
    return (PyObject *)self;
}

static PyObject *counter_next(Counter *self)
{
    return PyLong_FromUnsignedLongLong(counter_take(self));
}

static PyObject *counter_repr(Counter *self)
{
    return PyUnicode_FromFormat("Counter(%llu)", (unsigned long long)self->next);
}

PyTypeObject Counter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "whystuck_native.Counter",
    .tp_doc = "Counter(start=0): counts as itertools.count does, for Python and C.",
    .tp_basicsize = sizeof(Counter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = counter_new,
    .tp_repr = (reprfunc)counter_repr,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)counter_next,
};
