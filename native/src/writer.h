/* What all hooks of a process share: the ring, what was learned, and what is to be watched. */

#ifndef WHYSTUCK_WRITER_H
#define WHYSTUCK_WRITER_H

#include "common.h"
#include "counter.h"
#include "ring.h"
#include "sites.h"
#include "table.h"
#include "torch_args.h"

/* Handles that wait for the thread that looks at them; when there are more, the oldest goes. */
#define MAX_PENDING 8192

typedef struct {
    uint64_t number;
    PyObject *args; /* what the hook after the op was given, NULL when its end is not to be had */
} Pending;

/* A thread of the job, and its newest op if it waits for that: it is over when the thread issues
 * the next one. So handles of such ops are not heaped up. */
typedef struct {
    uint32_t thread;
    uint64_t number; /* 0 where there is none */
    PyObject *args;  /* as above, until it is taken */
    bool is_taken;
} Waiter;

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    Ring ring;
    Counter *numbers;
    PyObject *steps;   /* has `optimizer_steps` */
    PyObject *teacher; /* tells what is seen for the first time */
    Torch torch;
    /* By the numbers that torch has for ops. */
    uint64_t known_ops;
    uint64_t rooted_ops;
    Sites sites;
    Table forms;   /* number and flags, by op, root and tensors */
    Table threads; /* places in `waiters`, by what Python calls the identity */
    Waiter *waiters;
    unsigned long last_ident;
    Waiter *last_waiter;
    Pending *pending;
    uint32_t pending_at;
    uint32_t pending_count;
    uint32_t untaken_count; /* of the waiters */
    uint32_t forks;
    Py_ssize_t open_count;
    long long due_ns;
    char is_open;
    char is_trusted;
    char watches;
} Writer;

extern PyTypeObject Writer_Type;

/* Called once: a forked child shares the file, and must not write. */
int writer_watch_forks(void);

/* Tells whether this process may write. */
bool writer_may_write(const Writer *writer);

/* Torch is not as it should be: from now on the Python recorder takes all ops. */
Outcome writer_give_up(Writer *writer, const char *reason);

Outcome writer_find_form(Writer *writer, PyObject *args, const BeforeArgs *before,
                         uint32_t *form, uint32_t *flags);
Outcome writer_find_thread(Writer *writer, unsigned long ident, Waiter **waiter);
Outcome writer_find_step(Writer *writer, uint64_t *step);

/* Compares what was read of the arguments of a hook with what Python sees, until that is known. */
Outcome writer_check_before(Writer *writer, PyObject *args, const BeforeArgs *before);
Outcome writer_check_after(Writer *writer, PyObject *args, const AfterArgs *after);

/* Has the handle of an op looked at; without `args`, only that it has come back. */
void writer_watch(Writer *writer, uint64_t number, PyObject *args);

/* The same for an op that its thread waits for. */
void writer_wait(Writer *writer, Waiter *waiter, uint64_t number, PyObject *args);

/* The op that a thread has waited for is over. */
void writer_settle(Writer *writer, Waiter *waiter, int64_t time_ns);

/* Wakes the thread that looks, when nobody has looked for long. */
Outcome writer_hasten(Writer *writer, int64_t time_ns);

#endif
