/* What torch gives to its hooks, read where torch keeps it.
 *
 * To ask for each field by its Python attribute takes a tenth of a microsecond and more. A hook gets
 * a pybind11 object that points to a struct; its layout is that of torch/csrc/distributed/c10d/
 * Hooks.hpp. Nothing is taken for granted: the first of them is read in a way that cannot crash, and
 * compared with what Python's attributes say. Tensors are asked through torch's stable C functions.
 */

#ifndef WHYSTUCK_TORCH_ARGS_H
#define WHYSTUCK_TORCH_ARGS_H

#include "common.h"

/* A tensor is a pointer to its implementation, which begins with a pointer to its methods. */
typedef struct {
    void *implementation;
} Tensor;

typedef struct {
    const Tensor *begin;
    const Tensor *end;
    const Tensor *room;
} Tensors;

typedef struct {
    uint8_t name;
    bool is_async;
    Tensors inputs;
    Tensors outputs;
    int64_t root;
    int64_t op_id;
} BeforeArgs;

typedef struct {
    uint8_t name;
    bool is_async;
    void *work;
    int64_t op_id;
} AfterArgs;

_Static_assert(sizeof(BeforeArgs) == 72 && sizeof(AfterArgs) == 24, "as on x86-64 and AArch64");

/* Torch's stable C functions; each returns 0 when it could tell. */
typedef int32_t (*AskNumber)(const Tensor *tensor, int64_t *told);
typedef int32_t (*AskNumbers)(const Tensor *tensor, int64_t **told);
typedef int32_t (*AskKind)(const Tensor *tensor, int32_t *told);

typedef struct {
    PyTypeObject *before_type;
    PyTypeObject *after_type;
    AskNumber get_dim;
    AskNumbers get_sizes;
    AskKind get_dtype;
    AskKind get_device_type;
    int32_t cpu;
    /* The methods of a plain tensor; others may not have sizes that can be told. */
    const void *plain_methods;
    /* What has been compared so far. */
    bool is_before_known;
    bool are_tensors_known;
    bool is_after_known;
    bool is_rest_known; /* all of it but where handles are */
} Torch;

/* Takes the types of the arguments, and the paths of torch's libraries, which must be loaded.
 * Raises an ImportError where something is missing. */
int torch_open(Torch *torch, PyObject *before_type, PyObject *after_type, const char *cpu_path,
               const char *core_path);

void torch_close(Torch *torch);

/* Returns what a hook was given, NULL when that is not what it should be; it is as long good as
 * `args`. The result may be a copy in `safe`, whose tensors must not be touched. */
const BeforeArgs *torch_before(const Torch *torch, PyObject *args, BeforeArgs *safe);
const AfterArgs *torch_after(const Torch *torch, PyObject *args, AfterArgs *safe);

/* Returns fields as Python sees them, for a comparison: name, async, root, op_id, and the addresses
 * of the tensors. NULL with an error set when they cannot be read. */
PyObject *torch_tell_before(const BeforeArgs *args);
PyObject *torch_tell_after(const AfterArgs *args);

static inline Py_ssize_t tensors_count(const Tensors *tensors)
{
    return tensors->end - tensors->begin;
}

/* Writes dtype, device and sizes of a tensor; returns how many words that are, -1 when the tensor
 * cannot be told or there are more than `room`. */
int torch_describe(const Torch *torch, const Tensor *tensor, uint64_t *words, int room);

#endif
