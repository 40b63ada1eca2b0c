/* The module `whystuck_native`. */

#include "common.h"
#include "counter.h"
#include "hooked.h"
#include "sites.h"
#include "writer.h"

/* What probe/oplog/native.py and this agree on; another number is not used. */
#define PROTOCOL 2

static PyObject *frames(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return list_frames();
}

static PyMethodDef functions[] = {
    {"frames", frames, METH_NOARGS,
     "frames() -> [(code, place)]: the frames of this thread as they are read here."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "whystuck_native",
    .m_doc = "Writes the op log of whystuck from inside torch's hooks of process groups.",
    .m_size = -1, /* one interpreter only */
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_whystuck_native(void)
{
    if (writer_watch_forks() < 0) {
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &Counter_Type) < 0
        || PyModule_AddType(made, &Writer_Type) < 0 || PyModule_AddType(made, &Hooked_Type) < 0
        || PyModule_AddIntConstant(made, "PROTOCOL", PROTOCOL) < 0
        || PyModule_AddStringConstant(made, "__version__", WHYSTUCK_NATIVE_VERSION) < 0) {
        Py_CLEAR(made);
    }
    return made;
}
