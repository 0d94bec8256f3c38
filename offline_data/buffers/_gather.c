/* Gathers rows of memory maps into the leaves of a batch, each contiguous and in memory of its own.
 *
 * Plain C on CPython's stable ABI; leaves are handed over as DLPack capsules, so nothing of torch
 * is compiled against. `native.py` is the only user, and checks what it passes; rows and episodes
 * are checked here, because they are data.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* DLPack 0.x, the version that capsules named "dltensor" carry. */
typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

enum { CPU = 1, ALIGN = 64, LINE = 64, TILE = 32, STAGES = 3, MAX_DIMS = 8, MAX_THREADS = 16 };
enum { BYTES_A_THREAD = 1 << 19 }; /* of a batch, from which a thread of its own pays */
enum { STEP = 0, ROOT = 1 };                 /* which row of a file: i, or i + e */
enum { ROWS = -1, ZEROS = -2, EITHER = -3 }; /* leaves that come from no file */

/* Both structures are arrays of int64 for Python, which packs them. */
typedef struct {
    int64_t base; /* address of the map */
    int64_t rows, stride;
    int64_t reach; /* bytes, from the beginning of a row on, that leaves are taken from */
    int64_t at;
} Source;

typedef struct {
    int64_t source;      /* number of a source, or ROWS, ZEROS, EITHER */
    int64_t offset;      /* bytes in a row of the source; for EITHER a leaf */
    int64_t other;       /* for EITHER another leaf */
    int64_t size;        /* bytes of one row */
    int64_t code, bits;  /* DLPack's type */
    int64_t ndim;
    int64_t shape[MAX_DIMS]; /* of one row */
} Leaf;

typedef struct {
    PyObject *owners; /* keeps the maps alive */
    int64_t sources, leaves;
    int64_t episode_source, episode_offset; /* where the number of an episode stands, or -1 */
    Source *source;
    Leaf *leaf;
} Plan;

static const char PLAN[] = "offline_data.gather_plan", TENSOR[] = "dltensor";

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

/* Large allocations come from the kernel as pages to be faulted in one by one, which takes longer
 * than filling them: those of batches that have died are kept for the next ones. Whoever does not
 * get the flag at once goes without, so a fork at any moment leaves nothing locked for good. */
enum { KEPT_FROM = 1 << 15, KEPT_SLOTS = 128 };
static const size_t KEPT_BYTES = (size_t)64 << 20;
static struct { void *memory; size_t capacity; } kept[KEPT_SLOTS];
static size_t kept_bytes;
static atomic_flag kept_busy = ATOMIC_FLAG_INIT;

static void *take_memory(size_t *capacity)
{
    void *memory = NULL;
    if (*capacity >= KEPT_FROM && !atomic_flag_test_and_set(&kept_busy)) {
        for (int i = 0; i < KEPT_SLOTS && !memory; i++)
            if (kept[i].capacity >= *capacity && kept[i].capacity / 2 <= *capacity) {
                memory = kept[i].memory;
                *capacity = kept[i].capacity;
                kept_bytes -= *capacity;
                kept[i].memory = NULL;
                kept[i].capacity = 0;
            }
        atomic_flag_clear(&kept_busy);
    }
    if (!memory && posix_memalign(&memory, ALIGN, *capacity))
        return NULL;
    return memory;
}

static void give_memory(void *memory, size_t capacity)
{
    if (capacity >= KEPT_FROM && !atomic_flag_test_and_set(&kept_busy)) {
        for (int i = 0; i < KEPT_SLOTS && memory && kept_bytes + capacity <= KEPT_BYTES; i++)
            if (!kept[i].memory) {
                kept[i].memory = memory;
                kept[i].capacity = capacity;
                kept_bytes += capacity;
                memory = NULL;
            }
        atomic_flag_clear(&kept_busy);
    }
    free(memory);
}

/* What stands before the values of a leaf, in the same allocation. */
typedef struct {
    DLManagedTensor managed;
    size_t capacity;
    int64_t shape[MAX_DIMS + 1];
} Head;

static void free_tensor(DLManagedTensor *managed)
{
    Head *head = managed->context;
    give_memory(head, head->capacity);
}

/* Called for a capsule that nobody took: one that was taken has another name. */
static void drop_tensor(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, TENSOR))
        free_tensor(PyCapsule_GetPointer(capsule, TENSOR));
}

static DLManagedTensor *new_tensor(const Leaf *leaf, int64_t count)
{
    size_t begin = (sizeof(Head) + ALIGN - 1) / ALIGN * ALIGN;
    size_t capacity = begin + (size_t)(leaf->size * count);
    Head *head = take_memory(&capacity);
    if (!head)
        return NULL;
    head->capacity = capacity;
    head->shape[0] = count;
    memcpy(head->shape + 1, leaf->shape, sizeof(int64_t) * (size_t)leaf->ndim);
    head->managed.context = head;
    head->managed.deleter = free_tensor;
    head->managed.tensor = (DLTensor){
        .data = (uint8_t *)head + begin,
        .device = {CPU, 0},
        .ndim = (int32_t)leaf->ndim + 1,
        .dtype = {(uint8_t)leaf->code, (uint8_t)leaf->bits, 1},
        .shape = head->shape,
        .strides = NULL, /* contiguous */
        .byte_offset = 0,
    };
    return &head->managed;
}

#define COPY_AS(type)                                   \
    for (int i = 0; i < count; i++) {                   \
        type value;                                     \
        memcpy(&value, from[i] + offset, sizeof value); \
        memcpy(to + (size_t)i * sizeof value, &value, sizeof value); \
    }

/* Copy `size` bytes at `offset` of `count` rows, one after the other. */
static void copy_leaf(uint8_t *to, const uint8_t **from, int count, int64_t offset, int64_t size)
{
    switch (size) {
    case 1: COPY_AS(uint8_t) return;
    case 2: COPY_AS(uint16_t) return;
    case 4: COPY_AS(uint32_t) return;
    case 8: COPY_AS(uint64_t) return;
    }
    if (size < 16 || size > 512) {
        for (int i = 0; i < count; i++)
            memcpy(to + (size_t)i * (size_t)size, from[i] + offset, (size_t)size);
        return;
    }
    for (int i = 0; i < count; i++) { /* by 16 bytes, the last 16 overlapping those before */
        const uint8_t *source = from[i] + offset;
        uint8_t *target = to + (size_t)i * (size_t)size;
        int64_t done = 0;
        for (; done + 16 <= size; done += 16)
            memcpy(target + done, source + done, 16);
        memcpy(target + size - 16, source + size - 16, 16);
    }
}

static void prefetch(const Source *source, const uint8_t *row)
{
    int64_t reach = source->reach < 32 * LINE ? source->reach : 4 * LINE;
    for (int64_t at = 0; at < reach; at += LINE)
        __builtin_prefetch(row + at, 0, 3);
    __builtin_prefetch(row + reach - 1, 0, 3);
}

/* Point at the rows of a tile; returns 0 where one is not there. */
static int locate(const Source *source, const int64_t *numbers, int count, const uint8_t **rows)
{
    for (int i = 0; i < count; i++) {
        int64_t number = numbers[i];
        if (number < 0 || number >= source->rows ||
            source->reach > (source->rows - number) * source->stride)
            return 0;
        rows[i] = (const uint8_t *)(intptr_t)source->base + number * source->stride;
        prefetch(source, rows[i]);
    }
    return 1;
}

/* A few rows on their way: where they lie in each source. */
typedef struct {
    int64_t first; /* number of the first of them in the batch */
    int count;
    const uint8_t **pointers; /* TILE for each source */
} Tile;

/* Point at the rows of the files that have one per transition, and ask for their bytes. */
static int locate_steps(const Plan *plan, const int64_t *rows, const Tile *tile)
{
    for (int64_t s = 0; s < plan->sources; s++)
        if (plan->source[s].at == STEP && !locate(plan->source + s, rows + tile->first, tile->count,
                                                  tile->pointers + s * TILE))
            return 0;
    return 1;
}

/* The same for files that have a row more per episode: the step row says which episode it is. */
static int locate_roots(const Plan *plan, const int64_t *rows, const Tile *tile)
{
    int64_t root[TILE];
    if (plan->episode_source < 0)
        return 1;
    const uint8_t **steps = tile->pointers + plan->episode_source * TILE;
    for (int i = 0; i < tile->count; i++) {
        int64_t episode;
        memcpy(&episode, steps[i] + plan->episode_offset, sizeof episode);
        if (episode < 0 || episode > rows[tile->first + i])
            return 0;
        root[i] = rows[tile->first + i] + episode;
    }
    for (int64_t s = 0; s < plan->sources; s++)
        if (plan->source[s].at == ROOT &&
            !locate(plan->source + s, root, tile->count, tile->pointers + s * TILE))
            return 0;
    return 1;
}

static void copy_tile(const Plan *plan, const Tile *tile, DLManagedTensor **out)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        if (leaf->source >= 0)
            copy_leaf((uint8_t *)out[l]->tensor.data + tile->first * leaf->size,
                      tile->pointers + leaf->source * TILE, tile->count, leaf->offset, leaf->size);
    }
}

/* Fill the leaves that come from no file; those they are made of come before them. */
static void fill_made(const Plan *plan, const int64_t *rows, int64_t count, DLManagedTensor **out)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        uint8_t *to = out[l]->tensor.data;
        if (leaf->source == ROWS)
            memcpy(to, rows, sizeof(int64_t) * (size_t)count);
        else if (leaf->source == ZEROS)
            memset(to, 0, (size_t)(leaf->size * count));
        else if (leaf->source == EITHER) {
            const uint8_t *one = out[leaf->offset]->tensor.data;
            const uint8_t *other = out[leaf->other]->tensor.data;
            for (int64_t i = 0; i < count; i++)
                to[i] = one[i] | other[i];
        }
    }
}

/* The tiles that one thread gathers. */
typedef struct {
    const Plan *plan;
    const int64_t *rows;
    int64_t first, stop;
    DLManagedTensor **out;
    int fine;
} Share;

/* Three tiles are under way at a time, so that memory is waited for as little as can be:
 *
 *     tile k + 2    asks for its step rows
 *     tile k + 1    reads its episodes, asks for its observation rows
 *     tile k        copies what has arrived
 */
static void *gather_share(void *argument)
{
    Share *share = argument;
    const Plan *plan = share->plan;
    size_t size = TILE * (size_t)(plan->sources + 1);
    const uint8_t **pointers = malloc(sizeof *pointers * size * STAGES);
    int64_t tiles = (share->stop - share->first + TILE - 1) / TILE;
    Tile ring[STAGES];
    share->fine = pointers != NULL;
    for (int64_t k = 1 - STAGES; share->fine && k < tiles; k++) {
        int64_t asked = k + 2, read = k + 1;
        if (asked < tiles) {
            int64_t first = share->first + asked * TILE, left = share->stop - first;
            Tile *tile = &ring[asked % STAGES];
            *tile = (Tile){first, left < TILE ? (int)left : TILE,
                           pointers + (size_t)(asked % STAGES) * size};
            share->fine = locate_steps(plan, share->rows, tile);
        }
        if (share->fine && read >= 0 && read < tiles)
            share->fine = locate_roots(plan, share->rows, &ring[read % STAGES]);
        if (share->fine && k >= 0)
            copy_tile(plan, &ring[k % STAGES], share->out);
    }
    free(pointers);
    return NULL;
}

static int64_t batch_bytes(const Plan *plan, int64_t count)
{
    int64_t bytes = 0;
    for (int64_t l = 0; l < plan->leaves; l++)
        bytes += plan->leaf[l].size * count;
    return bytes;
}

/* Threads are made for a call and end with it: that takes about 20 us, which a large batch is
 * worth, and leaves none behind that a fork would lose. */
static int gather_all(const Plan *plan, const int64_t *rows, int64_t count, int64_t threads,
                      DLManagedTensor **out)
{
    Share shares[MAX_THREADS];
    pthread_t others[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    int64_t tiles = (count + TILE - 1) / TILE, worth = batch_bytes(plan, count) / BYTES_A_THREAD;
    int64_t parts = threads < worth ? threads : worth;
    parts = parts > MAX_THREADS ? MAX_THREADS : parts > tiles ? tiles : parts;
    parts = parts < 1 ? 1 : parts;
    for (int64_t p = 0; p < parts; p++) {
        int64_t first = tiles * p / parts * TILE, stop = tiles * (p + 1) / parts * TILE;
        shares[p] = (Share){plan, rows, first, stop < count ? stop : count, out, 0};
        if (p > 0)
            started[p] = !pthread_create(&others[p], NULL, gather_share, &shares[p]);
    }
    int fine = 1;
    for (int64_t p = 0; p < parts; p++) {
        if (started[p])
            pthread_join(others[p], NULL);
        else
            gather_share(&shares[p]);
        fine = fine && shares[p].fine;
    }
    if (fine)
        fill_made(plan, rows, count, out);
    return fine;
}

static int allocate(const Plan *plan, int64_t count, DLManagedTensor **out)
{
    for (int64_t l = 0; l < plan->leaves; l++)
        if (!(out[l] = new_tensor(plan->leaf + l, count)))
            return 0;
    return 1;
}

static void release(const Plan *plan, DLManagedTensor **out)
{
    for (int64_t l = 0; l < plan->leaves; l++)
        if (out[l])
            free_tensor(out[l]);
}

/* Hand the leaves over; those that cannot be are freed. */
static PyObject *wrapped(const Plan *plan, DLManagedTensor **out)
{
    PyObject *list = PyList_New((Py_ssize_t)plan->leaves);
    for (int64_t l = 0; list && l < plan->leaves; l++) {
        PyObject *capsule = PyCapsule_New(out[l], TENSOR, drop_tensor);
        if (!capsule) {
            Py_CLEAR(list);
            break;
        }
        out[l] = NULL;
        PyList_SetItem(list, (Py_ssize_t)l, capsule);
    }
    release(plan, out);
    return list;
}

/* gather(plan, address of count int64 rows, count, threads) -> a capsule for each leaf */
static PyObject *gather(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    Py_ssize_t address, count, threads;
    if (!PyArg_ParseTuple(args, "Onnn", &capsule, &address, &count, &threads))
        return NULL;
    const Plan *plan = PyCapsule_GetPointer(capsule, PLAN);
    if (!plan)
        return NULL;
    DLManagedTensor **out = calloc((size_t)plan->leaves + 1, sizeof *out);
    if (!out)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    if (!allocate(plan, count, out)) {
        PyErr_NoMemory();
        release(plan, out);
    } else {
        int fine;
        Py_BEGIN_ALLOW_THREADS
        fine = gather_all(plan, (const int64_t *)(intptr_t)address, count, threads, out);
        Py_END_ALLOW_THREADS
        if (fine)
            result = wrapped(plan, out);
        else {
            PyErr_SetString(PyExc_IndexError, "a row is out of range, or the files are damaged");
            release(plan, out);
        }
    }
    free(out);
    return result;
}

static int sound(const Plan *plan)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        if (leaf->ndim < 0 || leaf->ndim > MAX_DIMS || leaf->source >= plan->sources)
            return 0;
        if (leaf->source >= 0 && leaf->offset + leaf->size > plan->source[leaf->source].reach)
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

/* plan(sources, leaves, episode source, episode offset, owners) -> a capsule for `gather` */
static PyObject *plan(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *sources, *leaves;
    Py_ssize_t sources_size, leaves_size, episode_source, episode_offset;
    PyObject *owners;
    if (!PyArg_ParseTuple(args, "y#y#nnO", &sources, &sources_size, &leaves, &leaves_size,
                          &episode_source, &episode_offset, &owners))
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
    {"plan", plan, METH_VARARGS, "plan(sources, leaves, episode_source, episode_offset, owners)"},
    {"gather", gather, METH_VARARGS, "gather(plan, address, count, threads) -> capsules"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_gather", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gather(void)
{
    return PyModuleDef_Init(&module);
}
