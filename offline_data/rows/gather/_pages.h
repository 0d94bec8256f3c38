/* Read-ahead of pages of memory maps, and whether they are resident. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ask(address of count pairs of int64, count): start reading ranges of pages without waiting; a pair
 * is an address and a length in bytes. */
static PyObject *ask(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t address, count;
    if (!PyArg_ParseTuple(args, "nn", &address, &count))
        return NULL;
    const int64_t *pairs = (const int64_t *)(intptr_t)address;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        posix_madvise((void *)(intptr_t)pairs[2 * i], (size_t)pairs[2 * i + 1],
                      POSIX_MADV_WILLNEED);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#ifdef __linux__
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels return EINVAL, which is harmless */
#endif

static int64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Map the resident pages of a range into the process; returns 0 at the first that is not resident,
 * or after the deadline. */
static int populate(uint8_t *at, size_t size, int64_t deadline)
{
    enum { PIECE = 2 << 20, SMALLEST_PAGE = 4096 };
    unsigned char present[PIECE / SMALLEST_PAGE];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t done = 0; done < size; done += PIECE) {
        size_t bytes = size - done < PIECE ? size - done : PIECE;
        if (microseconds() > deadline || mincore(at + done, bytes, present))
            return 0;
        for (size_t p = 0; p < (bytes + page - 1) / page; p++)
            if (!(present[p] & 1))
                return 0;
        madvise(at + done, bytes, MADV_POPULATE_READ);
    }
    return 1;
}
#else
static int64_t microseconds(void)
{
    return 0;
}

static int populate(uint8_t *at, size_t size, int64_t deadline)
{
    (void)at, (void)size, (void)deadline;
    return 0;
}
#endif

/* settle(address of count pairs as for `ask`, count, microseconds that it may take)
 * -> whether all of them are resident and mapped */
static PyObject *settle(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t address, count, limit;
    if (!PyArg_ParseTuple(args, "nnn", &address, &count, &limit))
        return NULL;
    const int64_t *pairs = (const int64_t *)(intptr_t)address;
    int there = 1;
    Py_BEGIN_ALLOW_THREADS
    int64_t deadline = microseconds() + limit;
    for (Py_ssize_t i = 0; i < count && there; i++)
        there = populate((uint8_t *)(intptr_t)pairs[2 * i], (size_t)pairs[2 * i + 1], deadline);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(there);
}

#ifndef RUSAGE_THREAD
#define RUSAGE_THREAD RUSAGE_SELF
#endif

/* reads() -> major page faults and block reads of this thread */
static PyObject *reads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return PyLong_FromLongLong((long long)usage.ru_majflt + usage.ru_inblock);
}
