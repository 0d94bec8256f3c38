/* Gathers rows of memory maps into the leaves of a batch; each leaf is contiguous and owns its memory.
 *
 * Plain C, CPython's stable ABI, not compiled against torch. `native.py` and `readahead.py` are the
 * only callers and validate their arguments; rows and episode numbers are bounds-checked here.
 */
#ifndef _GNU_SOURCE /* for RUSAGE_THREAD; Python 3.10 defines it, too */
#define _GNU_SOURCE 1
#endif
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_pages.h"
#include "_tiles.h"

static const char PLAN[] = "offline_data.gather_plan";

static void free_plan(Plan *plan)
{
    Py_XDECREF(plan->owners);
    free(plan->source);
    free(plan->leaf);
    free(plan);
}

static void drop_plan(PyObject *capsule)
{
    free_plan(PyCapsule_GetPointer(capsule, PLAN));
}

static int allocate(const Plan *plan, int64_t count, int64_t groups, Head **out)
{
    for (int64_t l = 0; l < plan->leaves; l++)
        if (!(out[l] = new_leaf(&plan->leaf[l].kind, count, groups)))
            return 0;
    return 1;
}

static void release(const Plan *plan, Head **out)
{
    for (int64_t l = 0; l < plan->leaves; l++)
        if (out[l])
            free_leaf(out[l]);
}

/* Return all leaves as a list; on an error, free the rest. */
static PyObject *handed_over(const Plan *plan, Head **out)
{
    PyObject *list = PyList_New((Py_ssize_t)plan->leaves);
    for (int64_t l = 0; list && l < plan->leaves; l++) {
        Head *head = out[l];
        out[l] = NULL;
        PyObject *object = object_of(plan->exchange, head);
        if (!object)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)l, object);
    }
    release(plan, out);
    return list;
}

/* Gather with `number` plans of equal structure; if `groups`, leaves get a leading dimension for them.
 * If `source` is given, `number` is 1 and `source` holds the plan of each row. */
static PyObject *gathered(const Plan **plans, int64_t number, const int64_t *source,
                          Py_ssize_t address, int64_t count, int64_t threads, int groups)
{
    const Plan *plan = plans[0];
    Head **out = calloc((size_t)plan->leaves + 1, sizeof *out);
    if (!out)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    if (!allocate(plan, number * count, groups ? number : 0, out)) {
        PyErr_NoMemory();
        release(plan, out);
    } else {
        int fine;
        Py_BEGIN_ALLOW_THREADS
        fine = gather_all(plans, number, source, (const int64_t *)(intptr_t)address, count,
                          threads, out);
        Py_END_ALLOW_THREADS
        if (fine)
            result = handed_over(plan, out);
        else {
            PyErr_SetString(PyExc_IndexError, "a row is out of range, or the files are damaged");
            release(plan, out);
        }
    }
    free(out);
    return result;
}

/* gather(plan, address of count int64 rows, count, threads)
 * -> list of leaves, see `object_of` */
static PyObject *gather(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    Py_ssize_t address, count, threads;
    if (!PyArg_ParseTuple(args, "Onnn", &capsule, &address, &count, &threads))
        return NULL;
    const Plan *plan = PyCapsule_GetPointer(capsule, PLAN);
    return plan ? gathered(&plan, 1, NULL, address, count, threads, 0) : NULL;
}

/* Return true if the leaves of two plans have the same types and shapes. */
static int alike(const Plan *one, const Plan *other)
{
    if (one->leaves != other->leaves)
        return 0;
    for (int64_t l = 0; l < one->leaves; l++) {
        const Leaf *a = one->leaf + l, *b = other->leaf + l;
        int made = a->source < 0 || b->source < 0;
        if (memcmp(&a->kind, &b->kind, sizeof a->kind))
            return 0;
        if (made && (a->source != b->source || a->offset != b->offset || a->other != b->other))
            return 0;
    }
    return 1;
}

/* gather_groups(list of plans, address of count int64 rows for each, count, threads)
 * -> list of leaves `[plans, count, ...]`, or None if the plans differ in structure.
 * The caller's list keeps the plans alive. */
static PyObject *gather_groups(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list;
    Py_ssize_t address, count, threads;
    if (!PyArg_ParseTuple(args, "O!nnn", &PyList_Type, &list, &address, &count, &threads))
        return NULL;
    Py_ssize_t number = PyList_Size(list);
    const Plan **plans = calloc((size_t)number + 1, sizeof *plans);
    if (!plans)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    int same = number > 0;
    for (Py_ssize_t n = 0; n < number && same; n++) {
        plans[n] = PyCapsule_GetPointer(PyList_GetItem(list, n), PLAN);
        same = plans[n] && alike(plans[0], plans[n]);
    }
    if (same)
        result = gathered(plans, number, NULL, address, count, threads, 1);
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    free(plans);
    return result;
}

/* Return true if the leaves of two plans have the same offsets in the same number of files. */
static int same_places(const Plan *one, const Plan *other)
{
    return one->leaves == other->leaves && one->sources == other->sources &&
           !memcmp(one->leaf, other->leaf, sizeof *one->leaf * (size_t)one->leaves);
}

/* gather_mixed(list of plans, address of count int64 plan indices, address of count int64 rows,
 * count, threads) -> list of leaves, or None if offsets differ between plans.
 * The caller's list keeps the plans alive. */
static PyObject *gather_mixed(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list;
    Py_ssize_t source_at, address, count, threads;
    if (!PyArg_ParseTuple(args, "O!nnnn", &PyList_Type, &list, &source_at, &address, &count,
                          &threads))
        return NULL;
    Py_ssize_t number = PyList_Size(list);
    const int64_t *source = (const int64_t *)(intptr_t)source_at;
    const Plan **plans = calloc((size_t)number + 1, sizeof *plans);
    if (!plans)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    int same = number > 0;
    for (Py_ssize_t n = 0; n < number && same; n++) {
        plans[n] = PyCapsule_GetPointer(PyList_GetItem(list, n), PLAN);
        same = plans[n] && same_places(plans[0], plans[n]);
    }
    for (Py_ssize_t i = 0; i < count && same; i++)
        if (source[i] < 0 || source[i] >= number) {
            PyErr_SetString(PyExc_IndexError, "a row is of no plan");
            same = 0;
        }
    if (same)
        result = gathered(plans, 1, source, address, count, threads, 0);
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    free(plans);
    return result;
}

static int sound(const Plan *plan)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        if (leaf->kind.ndim < 0 || leaf->kind.ndim > MAX_DIMS || leaf->source >= plan->sources)
            return 0;
        if (leaf->source >= 0 && leaf->offset + leaf->kind.size > plan->source[leaf->source].reach)
            return 0;
        if (leaf->source == EITHER && (leaf->offset >= l || leaf->other >= l))
            return 0;
    }
    return plan->episode_source < plan->sources;
}

static void *copied(const char *bytes, Py_ssize_t size)
{
    void *memory = malloc((size_t)size + 1);
    return memory ? memcpy(memory, bytes, (size_t)size) : NULL;
}

/* plan(sources, leaves, episode source, episode offset, owners, torch's table of functions or None)
 * -> a capsule for `gather` */
static PyObject *plan(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *sources, *leaves;
    Py_ssize_t sources_size, leaves_size, episode_source, episode_offset;
    PyObject *owners, *table;
    if (!PyArg_ParseTuple(args, "y#y#nnOO", &sources, &sources_size, &leaves, &leaves_size,
                          &episode_source, &episode_offset, &owners, &table))
        return NULL;
    const ExchangeApi *exchange = exchange_of(table);
    if (PyErr_Occurred())
        return NULL;
    Plan *made = calloc(1, sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    made->sources = sources_size / (Py_ssize_t)sizeof(Source);
    made->leaves = leaves_size / (Py_ssize_t)sizeof(Leaf);
    made->episode_source = episode_source;
    made->episode_offset = episode_offset;
    made->source = copied(sources, sources_size);
    made->leaf = copied(leaves, leaves_size);
    Py_INCREF(owners);
    made->owners = owners;
    made->exchange = exchange;
    PyObject *capsule = NULL;
    if (!made->source || !made->leaf)
        PyErr_NoMemory();
    else if (!sound(made))
        PyErr_SetString(PyExc_ValueError, "a plan that does not fit itself");
    else
        capsule = PyCapsule_New(made, PLAN, drop_plan);
    if (!capsule)
        free_plan(made);
    return capsule;
}

static PyMethodDef methods[] = {
    {"plan", plan, METH_VARARGS,
     "plan(sources, leaves, episode_source, episode_offset, owners, exchange)"},
    {"gather", gather, METH_VARARGS, "gather(plan, address, count, threads) -> leaves"},
    {"gather_groups", gather_groups, METH_VARARGS,
     "gather_groups(plans, address, count, threads) -> leaves, or None"},
    {"gather_mixed", gather_mixed, METH_VARARGS,
     "gather_mixed(plans, source, address, count, threads) -> leaves, or None"},
    {"ask", ask, METH_VARARGS, "ask(address, count)"},
    {"settle", settle, METH_VARARGS, "settle(address, count, microseconds) -> bool"},
    {"reads", reads, METH_NOARGS, "reads() -> int"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_gather", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gather(void)
{
    return PyModuleDef_Init(&module);
}
