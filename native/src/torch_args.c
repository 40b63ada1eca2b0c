#include "torch_args.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* An op on more tensors than this is left to the Python recorder. */
#define MAX_TENSORS 4096
#define MAX_DIMS 64

/* How pybind11 keeps a value that it holds by one pointer. */
typedef struct {
    PyObject_HEAD
    void *value;
    void *holder[2];
    PyObject *weak_references;
    uint8_t flags;
} Instance;

#define IS_SIMPLE 2 /* the second one of the flags, of which the first is `owned` */

/* Copies memory that may not be there; returns whether it was. */
static bool read_safely(void *target, const void *source, size_t bytes)
{
    struct iovec local = {.iov_base = target, .iov_len = bytes};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)source, .iov_len = bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static void *find_symbol(const char *path, const char *name)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library == NULL ? NULL : dlsym(library, name);
    if (library != NULL) {
        dlclose(library);
    }
    if (symbol == NULL && PyErr_Occurred() == NULL) {
        PyErr_Format(PyExc_ImportError, "torch has no %s", name);
    }
    return symbol;
}

static bool is_instance_type(PyObject *type)
{
    return PyType_Check(type) && ((PyTypeObject *)type)->tp_basicsize >= (Py_ssize_t)sizeof(Instance);
}

int torch_open(Torch *torch, PyObject *before_type, PyObject *after_type, const char *cpu_path,
               const char *core_path)
{
    if (!is_instance_type(before_type) || !is_instance_type(after_type)) {
        PyErr_SetString(PyExc_ImportError, "torch gives its hooks something else");
        return -1;
    }
    torch->get_dim = (AskNumber)find_symbol(cpu_path, "aoti_torch_get_dim");
    torch->get_sizes = (AskNumbers)find_symbol(cpu_path, "aoti_torch_get_sizes");
    torch->get_dtype = (AskKind)find_symbol(cpu_path, "aoti_torch_get_dtype");
    torch->get_device_type = (AskKind)find_symbol(cpu_path, "aoti_torch_get_device_type");
    int32_t (*get_cpu)(void) =
        (int32_t(*)(void))find_symbol(cpu_path, "aoti_torch_device_type_cpu");
    const char *methods = find_symbol(core_path, "_ZTVN3c1010TensorImplE");
    if (PyErr_Occurred() != NULL) {
        return -1;
    }
    torch->cpu = get_cpu();
    /* Before the methods are an offset and the type. */
    torch->plain_methods = methods + 2 * sizeof(void *);
    torch->before_type = (PyTypeObject *)Py_NewRef(before_type);
    torch->after_type = (PyTypeObject *)Py_NewRef(after_type);
    return 0;
}

void torch_close(Torch *torch)
{
    Py_CLEAR(torch->before_type);
    Py_CLEAR(torch->after_type);
}

static const void *value_of(PyObject *args, const PyTypeObject *type)
{
    if (Py_TYPE(args) != type || (((Instance *)args)->flags & IS_SIMPLE) == 0) {
        return NULL;
    }
    return ((Instance *)args)->value;
}

static bool can_be_tensors(const Tensors *tensors)
{
    Py_ssize_t count = tensors_count(tensors);
    return count >= 0 && count <= MAX_TENSORS && tensors->end <= tensors->room;
}

const BeforeArgs *torch_before(const Torch *torch, PyObject *args, BeforeArgs *safe)
{
    const BeforeArgs *value = value_of(args, torch->before_type);
    if (value != NULL && !torch->is_before_known) {
        value = read_safely(safe, value, sizeof *safe) ? safe : NULL;
    }
    if (value == NULL || !can_be_tensors(&value->inputs) || !can_be_tensors(&value->outputs)) {
        return NULL;
    }
    return value;
}

const AfterArgs *torch_after(const Torch *torch, PyObject *args, AfterArgs *safe)
{
    const AfterArgs *value = value_of(args, torch->after_type);
    if (value != NULL && !torch->is_rest_known) {
        value = read_safely(safe, value, sizeof *safe) ? safe : NULL;
    }
    return value;
}

/* Returns the addresses of tensors, which are not looked into. */
static PyObject *tell_tensors(const Tensors *tensors)
{
    Py_ssize_t count = tensors_count(tensors);
    PyObject *told = PyTuple_New(count);
    for (Py_ssize_t at = 0; told != NULL && at < count; at++) {
        Tensor tensor;
        PyObject *address = NULL;
        if (!read_safely(&tensor, &tensors->begin[at], sizeof tensor)) {
            PyErr_SetString(PyExc_ValueError, "no tensors are where they should be");
        } else {
            address = PyLong_FromVoidPtr(tensor.implementation);
        }
        if (address == NULL) {
            Py_CLEAR(told);
            break;
        }
        PyTuple_SET_ITEM(told, at, address);
    }
    return told;
}

PyObject *torch_tell_before(const BeforeArgs *args)
{
    PyObject *inputs = tell_tensors(&args->inputs);
    PyObject *outputs = inputs == NULL ? NULL : tell_tensors(&args->outputs);
    if (outputs == NULL) {
        Py_XDECREF(inputs);
        return NULL;
    }
    /* The byte of a bool that is none must not be taken as one. */
    uint8_t is_async;
    memcpy(&is_async, &args->is_async, sizeof is_async);
    return Py_BuildValue("(iiLLNN)", args->name, is_async, (long long)args->root,
                         (long long)args->op_id, inputs, outputs);
}

PyObject *torch_tell_after(const AfterArgs *args)
{
    uint8_t is_async;
    memcpy(&is_async, &args->is_async, sizeof is_async);
    return Py_BuildValue("(iiiL)", args->name, is_async, args->work != NULL,
                         (long long)args->op_id);
}

int torch_describe(const Torch *torch, const Tensor *tensor, uint64_t *words, int room)
{
    if (*(const void **)tensor->implementation != torch->plain_methods) {
        return -1;
    }
    int64_t dims = 0;
    int64_t *sizes = NULL;
    int32_t dtype = 0, device = 0;
    if (torch->get_dim(tensor, &dims) != 0 || dims < 0 || dims > MAX_DIMS || dims >= room
        || torch->get_sizes(tensor, &sizes) != 0 || torch->get_dtype(tensor, &dtype) != 0
        || torch->get_device_type(tensor, &device) != 0) {
        return -1;
    }
    words[0] = (uint64_t)(uint8_t)dims | (uint64_t)(device == torch->cpu) << 8
               | (uint64_t)(uint16_t)dtype << 16 | (uint64_t)(uint16_t)device << 32;
    memcpy(words + 1, sizes, (size_t)dims * sizeof *sizes);
    return (int)dims + 1;
}
