/* Allocates the leaves of a batch and exports them as tensors through DLPack.
 *
 * DLPack is a struct layout that torch reads, so nothing is compiled against torch.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

enum { CPU = 1, ALIGN = 64, MAX_DIMS = 8 };

/* Type of a leaf; packed by Python as an array of int64. */
typedef struct {
    int64_t size;       /* bytes of one row */
    int64_t code, bits; /* DLPack dtype */
    int64_t ndim;
    int64_t shape[MAX_DIMS]; /* of one row */
} Kind;

/* Capsules carry DLPack version 0; `ExchangeApi` takes version 1. */
typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct { uint32_t major, minor; } DLVersion;
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
typedef struct DLManagedTensorVersioned {
    DLVersion version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    DLTensor tensor;
} DLManagedTensorVersioned;

/* First fields of the C function table of newer torch: creating a tensor through it takes two thirds
 * of the time of a capsule. */
typedef struct {
    DLVersion version;
    void *older;
    int (*allocate)(void), (*from_object)(void);
    int (*to_object)(DLManagedTensorVersioned *, PyObject **); /* takes ownership, also on failure */
} ExchangeApi;

static const char CAPSULE[] = "dltensor", EXCHANGE[] = "dlpack_exchange_api";

/* Memory of freed batches is reused: aligned allocations are slow, and the page faults of large new
 * ones take longer than filling them. One free list per size. The lock is only ever tried: a thread
 * that does not get it allocates instead, so a fork at any moment cannot leave it locked. */
typedef struct Block { struct Block *next; } Block;
enum { STEPS_A_DOUBLING = 8, LISTS = 168 };
static const size_t KEPT_BYTES = (size_t)64 << 20;
static Block *kept[LISTS];
static size_t kept_bytes;
static atomic_flag kept_busy = ATOMIC_FLAG_INIT;

/* Round a size up, by at most an eighth unless it is small; returns the free list of that size. */
static int list_for(size_t *size)
{
    size_t step = ALIGN;
    int doublings = 0;
    for (; step * STEPS_A_DOUBLING * 2 < *size; step *= 2)
        doublings++;
    size_t steps = (*size + step - 1) / step;
    *size = steps * step;
    return doublings * STEPS_A_DOUBLING + (int)steps;
}

static void *take_memory(size_t *capacity)
{
    void *memory = NULL;
    int list = list_for(capacity);
    if (list < LISTS && !atomic_flag_test_and_set(&kept_busy)) {
        if (kept[list]) {
            memory = kept[list];
            kept[list] = kept[list]->next;
            kept_bytes -= *capacity;
        }
        atomic_flag_clear(&kept_busy);
    }
    if (!memory && posix_memalign(&memory, ALIGN, *capacity))
        return NULL;
    return memory;
}

static void give_memory(void *memory, size_t capacity)
{
    int list = list_for(&capacity);
    if (list < LISTS && !atomic_flag_test_and_set(&kept_busy)) {
        if (kept_bytes + capacity <= KEPT_BYTES) {
            Block *block = memory;
            block->next = kept[list];
            kept[list] = block;
            kept_bytes += capacity;
            memory = NULL;
        }
        atomic_flag_clear(&kept_busy);
    }
    free(memory);
}

/* Header before the values of a leaf, in the same allocation. */
typedef struct {
    DLTensor tensor;
    size_t capacity;
    int64_t shape[MAX_DIMS + 2], strides[MAX_DIMS + 2];
    union {
        DLManagedTensor capsule;
        DLManagedTensorVersioned versioned;
    } managed;
} Head;

static uint8_t *values_of(const Head *head)
{
    return head->tensor.data;
}

static void free_leaf(Head *head)
{
    give_memory(head, head->capacity);
}

/* Allocate a leaf of `count` rows: `[count, ...]`, or `[groups, count / groups, ...]` if there are
 * groups. */
static Head *new_leaf(const Kind *kind, int64_t count, int64_t groups)
{
    size_t begin = (sizeof(Head) + ALIGN - 1) / ALIGN * ALIGN;
    size_t capacity = begin + (size_t)(kind->size * count);
    Head *head = take_memory(&capacity);
    if (!head)
        return NULL;
    head->capacity = capacity;
    int rows = groups ? 2 : 1;
    head->shape[0] = groups ? groups : count;
    head->shape[rows - 1] = groups ? count / groups : count;
    for (int64_t d = 0; d < kind->ndim; d++)
        head->shape[rows + d] = kind->shape[d];
    int64_t stride = 1;
    for (int64_t d = rows + kind->ndim; d-- > 0; stride *= head->shape[d])
        head->strides[d] = stride;
    head->tensor = (DLTensor){
        .data = (uint8_t *)head + begin,
        .device = {CPU, 0},
        .ndim = (int32_t)kind->ndim + rows,
        .dtype = {(uint8_t)kind->code, (uint8_t)kind->bits, 1},
        .shape = head->shape,
        .strides = head->strides,
        .byte_offset = 0,
    };
    return head;
}

static void free_by_capsule(DLManagedTensor *managed)
{
    free_leaf(managed->context);
}

static void free_versioned(DLManagedTensorVersioned *managed)
{
    free_leaf(managed->context);
}

/* Destructor of a capsule that was not consumed; a consumed one has been renamed. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, CAPSULE))
        free_by_capsule(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* Return a leaf as a tensor, or as a capsule if there is no function table; frees the leaf on
 * failure. */
static PyObject *object_of(const ExchangeApi *exchange, Head *head)
{
    PyObject *object = NULL;
    if (exchange) {
        head->managed.versioned = (DLManagedTensorVersioned){
            .version = {1, 0}, .context = head, .deleter = free_versioned, .tensor = head->tensor};
        return exchange->to_object(&head->managed.versioned, &object) ? NULL : object;
    }
    head->managed.capsule =
        (DLManagedTensor){.tensor = head->tensor, .context = head, .deleter = free_by_capsule};
    object = PyCapsule_New(&head->managed.capsule, CAPSULE, drop_capsule);
    if (!object)
        free_leaf(head);
    return object;
}

/* Return torch's function table from its capsule; NULL for None, for another version, or with an
 * error set. */
static const ExchangeApi *exchange_of(PyObject *capsule)
{
    if (capsule == Py_None)
        return NULL;
    const ExchangeApi *exchange = PyCapsule_GetPointer(capsule, EXCHANGE);
    return exchange && exchange->version.major == 1 ? exchange : NULL;
}
