/* Samples from and updates the sum tree described in `samplers/sum_tree.py`, and stores priorities
 * for `samplers/prioritized.py`.
 *
 * Plain C, CPython's stable ABI. Sums are computed in the same order as in the Python version, so
 * results are identical to the last bit. The two callers own all memory; rows and values are
 * validated here because they come from the user. The GIL is held: a call takes microseconds, and no
 * thread sees a partially updated tree.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { WIDTH = 8, SHIFT = 3, MAX_LEVELS = 16 }; /* eight doubles: one cache line */

/* Packed by Python as an array of int64. Level 0 holds the leaves. */
typedef struct {
    int64_t sums, minima; /* addresses; minima start at level 1 */
    int64_t leaves;       /* usable leaves; the rest pad the last node */
    int64_t levels;
    int64_t first[MAX_LEVELS + 1]; /* index of the first node of each level, then the node count */
} Tree;

static double *sums_at(const Tree *tree, int64_t level)
{
    return (double *)(intptr_t)tree->sums + tree->first[level];
}

static double *minima_at(const Tree *tree, int64_t level)
{
    return (double *)(intptr_t)tree->minima + tree->first[level] - tree->first[1];
}

static double least(double one, double other)
{
    return one < other ? one : other;
}

static double sum_of(const double *below)
{
    double a = below[0] + below[4], b = below[1] + below[5];
    double c = below[2] + below[6], d = below[3] + below[7];
    return (a + b) + (c + d);
}

static double minimum_of(const double *below)
{
    double a = least(below[0], below[4]), b = least(below[1], below[5]);
    double c = least(below[2], below[6]), d = least(below[3], below[7]);
    return least(least(a, b), least(c, d));
}

static void renew_above_leaves(const Tree *tree, int64_t node)
{
    const double *below = sums_at(tree, 0) + node * WIDTH;
    double drawable[WIDTH];
    for (int c = 0; c < WIDTH; c++)
        drawable[c] = below[c] > 0 ? below[c] : INFINITY;
    sums_at(tree, 1)[node] = sum_of(below);
    minima_at(tree, 1)[node] = minimum_of(drawable);
}

static void renew(const Tree *tree, int64_t level, int64_t node)
{
    if (level == 1) {
        renew_above_leaves(tree, node);
        return;
    }
    sums_at(tree, level)[node] = sum_of(sums_at(tree, level - 1) + node * WIDTH);
    minima_at(tree, level)[node] = minimum_of(minima_at(tree, level - 1) + node * WIDTH);
}

/* Recompute the nodes of a level above the changed leaves `rows`. */
static void renew_level(const Tree *tree, int64_t level, const int64_t *rows, int64_t count)
{
    int64_t nodes = (tree->first[level] - tree->first[level - 1]) / WIDTH, last = -1;
    if (nodes <= count) {
        for (int64_t node = 0; node < nodes; node++)
            renew(tree, level, node);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t node = rows[i] >> (SHIFT * level);
        if (node != last)
            renew(tree, level, node);
        last = node;
        __builtin_prefetch(sums_at(tree, level + 1) + (node >> SHIFT));
    }
}

/* Return the index of the first invalid row or weight, or -1. */
static int64_t unsound(const Tree *tree, const int64_t *rows, const double *weights, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= tree->leaves || !(weights[i] >= 0) || isinf(weights[i]))
            return i;
    return -1;
}

/* Descend level by level for all draws at once, so that cache misses overlap. */
static void draw_all(const Tree *tree, const double *fractions, int64_t count, int64_t *rows,
                     double *values)
{
    double total = sums_at(tree, tree->levels - 1)[0];
    for (int64_t i = 0; i < count; i++) {
        rows[i] = 0;
        values[i] = fractions[i] * total;
    }
    for (int64_t level = tree->levels - 1; level > 0; level--) {
        const double *sums = sums_at(tree, level - 1);
        for (int64_t i = 0; i < count; i++) {
            const double *below = sums + rows[i] * WIDTH;
            double upto[WIDTH + 1] = {0}, mass = values[i];
            int64_t chosen = 0;
            for (int c = 0; c < WIDTH; c++) {
                upto[c + 1] = upto[c] + below[c];
                chosen += upto[c + 1] <= mass;
            }
            if (chosen == WIDTH) /* rounding error: take the last nonzero child */
                for (chosen = WIDTH - 1; chosen > 0 && below[chosen] <= 0; chosen--)
                    ;
            rows[i] = rows[i] * WIDTH + chosen;
            values[i] = mass - upto[chosen];
            if (level > 1)
                __builtin_prefetch(sums_at(tree, level - 2) + rows[i] * WIDTH);
        }
    }
    for (int64_t i = 0; i < count; i++)
        values[i] = sums_at(tree, 0)[rows[i]];
}

static int read_tree(const char *bytes, Py_ssize_t size, Tree *tree)
{
    if (size != (Py_ssize_t)sizeof *tree) {
        PyErr_SetString(PyExc_ValueError, "a tree that is none");
        return 0;
    }
    memcpy(tree, bytes, sizeof *tree);
    if (tree->levels < 2 || tree->levels > MAX_LEVELS) {
        PyErr_SetString(PyExc_ValueError, "a tree of too few or too many levels");
        return 0;
    }
    return 1;
}

/* set(tree, address of rows, address of values, count)
 * -> -1, or the index of the first invalid one, in which case nothing is changed */
static PyObject *set(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, rows_at, values_at, count;
    Tree tree;
    if (!PyArg_ParseTuple(args, "y#nnn", &bytes, &size, &rows_at, &values_at, &count) ||
        !read_tree(bytes, size, &tree))
        return NULL;
    const int64_t *rows = (const int64_t *)(intptr_t)rows_at;
    const double *values = (const double *)(intptr_t)values_at;
    int64_t wrong = unsound(&tree, rows, values, count);
    if (wrong < 0) {
        for (int64_t i = 0; i < count; i++)
            sums_at(&tree, 0)[rows[i]] = values[i];
        for (int64_t level = 1; level < tree.levels; level++)
            renew_level(&tree, level, rows, count);
    }
    return PyLong_FromLongLong(wrong);
}

/* draw(tree, address of fractions, count, address of rows, address of values) */
static PyObject *draw(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, fractions, count, rows, values;
    Tree tree;
    if (!PyArg_ParseTuple(args, "y#nnnn", &bytes, &size, &fractions, &count, &rows, &values) ||
        !read_tree(bytes, size, &tree))
        return NULL;
    draw_all(&tree, (const double *)(intptr_t)fractions, count, (int64_t *)(intptr_t)rows,
             (double *)(intptr_t)values);
    Py_RETURN_NONE;
}

/* Arguments of `update`; arrays have `count` elements. */
typedef struct {
    Py_ssize_t rows, priorities, count;
    int wide; /* priorities and weights are double, not float */
    double eps, alpha;
} Update;

static double priority_at(const Update *update, int64_t i)
{
    const void *start = (const void *)(intptr_t)update->priorities;
    return update->wide ? ((const double *)start)[i] : (double)((const float *)start)[i];
}

static double weight_of(const Update *update, double priority)
{
    if (update->wide)
        return pow(priority + update->eps, update->alpha);
    return powf((float)priority + (float)update->eps, (float)update->alpha);
}

/* Return the index of the first invalid row or priority, or -1. Prefetches the memory that the
 * update will access. */
static int64_t unsound_update(const Tree *tree, const Update *update, const double *stored,
                              double limit)
{
    const int64_t *rows = (const int64_t *)(intptr_t)update->rows;
    for (int64_t i = 0; i < update->count; i++) {
        double priority = priority_at(update, i);
        if (rows[i] < 0 || rows[i] >= tree->leaves || !(priority >= 0 && priority <= limit))
            return i;
        __builtin_prefetch(stored + rows[i], 1);
        __builtin_prefetch(sums_at(tree, 0) + rows[i], 1);
        __builtin_prefetch(sums_at(tree, 1) + (rows[i] >> SHIFT), 1);
        __builtin_prefetch(minima_at(tree, 1) + (rows[i] >> SHIFT), 1);
    }
    return -1;
}

/* Store priorities, and as leaves the weights of allowed rows. Of a repeated row the greatest
 * priority is kept, or the least. Returns the greatest priority these rows had before. */
static double store(const Tree *tree, const Update *update, double *stored, const uint8_t *allowed,
                    int greatest)
{
    const int64_t *rows = (const int64_t *)(intptr_t)update->rows;
    double before = -1;
    for (int64_t i = 0; i < update->count; i++) {
        before = stored[rows[i]] > before ? stored[rows[i]] : before;
        stored[rows[i]] = NAN; /* marks rows not yet written, so that a repeated row is recognised */
    }
    for (int64_t i = 0; i < update->count; i++) {
        double *one = stored + rows[i], priority = priority_at(update, i);
        if (!isnan(*one) && (greatest ? priority <= *one : priority >= *one))
            continue;
        *one = priority;
        if (allowed[rows[i]])
            sums_at(tree, 0)[rows[i]] = weight_of(update, priority);
    }
    return before;
}

/* update(tree, address of stored priorities, address of allowed, limit, greatest, address of rows,
 * address of priorities, count, wide, eps, alpha)
 * -> (-1, or the index of the first invalid one, in which case nothing is changed; the greatest
 * priority of these rows now; the greatest before) */
static PyObject *update(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, stored_at, allowed_at;
    double limit, before = -1, after = -1;
    int greatest;
    Tree tree;
    Update given;
    if (!PyArg_ParseTuple(args, "y#nndpnnnpdd", &bytes, &size, &stored_at, &allowed_at, &limit,
                          &greatest, &given.rows, &given.priorities, &given.count, &given.wide,
                          &given.eps, &given.alpha) ||
        !read_tree(bytes, size, &tree))
        return NULL;
    const int64_t *rows = (const int64_t *)(intptr_t)given.rows;
    double *stored = (double *)(intptr_t)stored_at;
    int64_t wrong = unsound_update(&tree, &given, stored, limit);
    if (wrong < 0) {
        before = store(&tree, &given, stored, (const uint8_t *)(intptr_t)allowed_at, greatest);
        for (int64_t i = 0; i < given.count; i++)
            after = stored[rows[i]] > after ? stored[rows[i]] : after;
        for (int64_t level = 1; level < tree.levels; level++)
            renew_level(&tree, level, rows, given.count);
    }
    return Py_BuildValue("Ldd", (long long)wrong, after, before);
}

static PyMethodDef methods[] = {
    {"update", update, METH_VARARGS,
     "update(tree, stored, allowed, limit, greatest, rows, priorities, count, wide, eps, "
     "alpha)"},
    {"set", set, METH_VARARGS, "set(tree, rows, values, count) -> number of what is wrong, or -1"},
    {"draw", draw, METH_VARARGS, "draw(tree, fractions, count, rows, values)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_sum_tree", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__sum_tree(void)
{
    return PyModuleDef_Init(&module);
}
