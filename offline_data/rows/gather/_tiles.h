/* Copies rows of memory maps to leaves in tiles, each prefetched before it is copied. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "_leaves.h"

enum { LINE = 64, TILE = 32, STAGES = 3, MAX_THREADS = 16 };
enum { BYTES_A_THREAD = 1 << 19 }; /* of a batch; below it another thread is not worth starting */
enum { STEP = 0, ROOT = 1 };                 /* row of the file: i, or i + episode */
enum { ROWS = -1, ZEROS = -2, EITHER = -3 }; /* leaves that are computed */

/* Both structs are packed by Python as arrays of int64. */
typedef struct {
    int64_t base; /* address of the map */
    int64_t rows, stride;
    int64_t reach; /* bytes at the start of a row that leaves are taken from */
    int64_t at;
} Source;

typedef struct {
    int64_t source; /* index of a source, or ROWS, ZEROS, EITHER */
    int64_t offset; /* byte offset in a row; for EITHER a leaf */
    int64_t other;  /* for EITHER another leaf */
    Kind kind;
} Leaf;

typedef struct {
    PyObject *owners; /* keeps the maps alive */
    int64_t sources, leaves;
    int64_t episode_source, episode_offset; /* location of the episode number, or -1 */
    Source *source;
    Leaf *leaf;
    const ExchangeApi *exchange; /* NULL: leaves are returned as capsules */
} Plan;

#define COPY_AS(type)                                   \
    for (int i = 0; i < count; i++) {                   \
        type value;                                     \
        memcpy(&value, from[i] + offset, sizeof value); \
        memcpy(to + (size_t)i * sizeof value, &value, sizeof value); \
    }

/* Copy `size` bytes at `offset` of each of `count` rows to contiguous memory. */
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

/* Prefetch to L2: the tiles in flight and the leaves do not fit L1 together, and prefetching to L1
 * measured a fifth slower. */
static void prefetch(const Source *source, const uint8_t *row)
{
    int64_t reach = source->reach < 32 * LINE ? source->reach : 4 * LINE;
    for (int64_t at = 0; at < reach; at += LINE)
        __builtin_prefetch(row + at, 0, 2);
    if (reach > 0) /* rows without bytes have no address */
        __builtin_prefetch(row + reach - 1, 0, 2);
}

/* Compute the addresses of a tile's rows; returns 0 if a row is out of range. */
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

/* A tile: addresses of a few rows in each source. */
typedef struct {
    int64_t first; /* position of its first row in the batch */
    int count;
    const uint8_t **pointers; /* TILE addresses per source */
} Tile;

/* Compute and prefetch the rows of files with one row per transition. */
static int locate_steps(const Plan *plan, const int64_t *rows, const Tile *tile)
{
    for (int64_t s = 0; s < plan->sources; s++)
        if (plan->source[s].at == STEP && !locate(plan->source + s, rows + tile->first, tile->count,
                                                  tile->pointers + s * TILE))
            return 0;
    return 1;
}

/* The same for files with T + 1 rows per episode; the step row holds the episode number. */
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

static void copy_tile(const Plan *plan, const Tile *tile, Head **out)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        if (leaf->source >= 0 && leaf->kind.size > 0)
            copy_leaf(values_of(out[l]) + tile->first * leaf->kind.size,
                      tile->pointers + leaf->source * TILE, tile->count, leaf->offset,
                      leaf->kind.size);
    }
}

/* Fill the computed leaves; the leaves they are computed from precede them. */
static void fill_made(const Plan *plan, const int64_t *rows, int64_t count, Head **out)
{
    for (int64_t l = 0; l < plan->leaves; l++) {
        const Leaf *leaf = plan->leaf + l;
        uint8_t *to = values_of(out[l]);
        if (leaf->source == ROWS)
            memcpy(to, rows, sizeof(int64_t) * (size_t)count);
        else if (leaf->source == ZEROS)
            memset(to, 0, (size_t)(leaf->kind.size * count));
        else if (leaf->source == EITHER) {
            const uint8_t *one = values_of(out[leaf->offset]);
            const uint8_t *other = values_of(out[leaf->other]);
            for (int64_t i = 0; i < count; i++)
                to[i] = one[i] | other[i];
        }
    }
}

/* Plans by row, for rows of several storages with equal offsets. If `source` is NULL, one plan for
 * all rows. */
typedef struct {
    const Plan **plans;
    const int64_t *source;
} Mix;

/* The tiles that one thread gathers. */
typedef struct {
    const Plan *plan;
    Mix mix;
    const int64_t *rows;
    int64_t first, stop;
    Head **out;
    int fine;
} Share;

/* Locate the rows of a tile with `locate_steps` or `locate_roots`. */
static int locate_tile(int (*where)(const Plan *, const int64_t *, const Tile *),
                       const Share *share, const Tile *tile)
{
    if (!share->mix.source)
        return where(share->plan, share->rows, tile);
    for (int i = 0; i < tile->count; i++) {
        Tile one = {tile->first + i, 1, tile->pointers + i};
        if (!where(share->mix.plans[share->mix.source[one.first]], share->rows, &one))
            return 0;
    }
    return 1;
}

/* Three tiles are in flight, so that memory latency overlaps with copying:
 *
 *     tile k + 2    prefetches its step rows
 *     tile k + 1    reads its episode numbers, prefetches its observation rows
 *     tile k        is copied
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
            share->fine = locate_tile(locate_steps, share, tile);
        }
        if (share->fine && read >= 0 && read < tiles)
            share->fine = locate_tile(locate_roots, share, &ring[read % STAGES]);
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
        bytes += plan->leaf[l].kind.size * count;
    return bytes;
}

/* Gather `count` rows starting at position `begin`; computed leaves are not filled.
 *
 * Threads live for one call: starting them takes about 20 us, little for a large batch, and no idle
 * thread exists that a fork would lose. */
static int gather_from(const Plan *plan, Mix mix, const int64_t *rows, int64_t begin,
                       int64_t count, int64_t threads, Head **out)
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
        stop = stop < count ? stop : count;
        shares[p] = (Share){plan, mix, rows, begin + first, begin + stop, out, 0};
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
    return fine;
}

/* Gather `count` rows with each plan, one after the other; plans have equal structure. */
static int gather_all(const Plan **plans, int64_t number, const int64_t *source,
                      const int64_t *rows, int64_t count, int64_t threads, Head **out)
{
    if (count == 0) /* the addresses of nothing may be NULL, with which C allows no arithmetic */
        return 1;
    for (int64_t n = 0; n < number; n++)
        if (!gather_from(plans[n], (Mix){plans, source}, rows, n * count, count, threads, out))
            return 0;
    fill_made(plans[0], rows, number * count, out);
    return 1;
}
