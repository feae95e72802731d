/* A stand-in for NVIDIA's libnvidia-ml.so.1 that answers from a table: as much of NVML as scalebench asks for.
 *
 * The table is the file NVML_STAND_IN_TABLE; it may become another one while NVML is in use. A line is a call, the
 * number of a GPU, a return code and the values, with a tab between: `nvmlDeviceGetClockInfo
 * 1<tab>0<tab>0<tab>1380`. A value that begins with @ grows by so much a second. A call that is not in the table
 * is not supported. GPU 1 can be lost half-way: __init__.py lists the variables. Numbers of return codes and the
 * layout of structures are those of nvml.h, fixed by its binary interface.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, IS_LOST = 15 };
enum { MAX_GPUS = 32, MAX_ROWS = 20000, NO_ARGUMENT = -1, LOST_GPU = 1, UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

typedef unsigned long long u64;
typedef struct { int index; long calls; } gpu_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned field, scope; long long at, latency; unsigned type; int result; u64 value; } field_t;
typedef struct { char call[80]; int gpu, code; char values[120]; } row_t;

static gpu_t gpus[MAX_GPUS];
static row_t rows[MAX_ROWS];
static int row_count;
static char table[4096]; /* the file that was read */

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 0) : otherwise;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Counts a question about a GPU. GPU 1 is lost after so many, or as soon as a file is there. */
static int state(gpu_t *gpu)
{
    if (!gpu) return INVALID;
    if (gpu->index != LOST_GPU) return SUCCESS;
    const char *file = getenv("NVML_STAND_IN_LOST_FILE");
    if (file && access(file, F_OK) == 0) return IS_LOST;
    return gpu->calls++ >= setting("NVML_STAND_IN_LOST_AFTER", 1L << 40) ? IS_LOST : SUCCESS;
}

static void read_table(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[sizeof(row_t) + 40];
    for (row_count = 0; file && row_count < MAX_ROWS && fgets(line, sizeof line, file); row_count++) {
        row_t *row = &rows[row_count];
        row->values[0] = 0;
        sscanf(line, "%79[^\t]\t%d\t%d\t%119[^\n]", row->call, &row->gpu, &row->code, row->values);
    }
    if (file) fclose(file);
    snprintf(table, sizeof table, "%s", path);
}

static int look_up(const char *name, const char *argument, int gpu, const char **values)
{
    char call[80];
    const char *path = getenv("NVML_STAND_IN_TABLE");
    if (path && strcmp(path, table) != 0) read_table(path);
    snprintf(call, sizeof call, "%s%s%s", name, *argument ? " " : "", argument);
    for (int i = 0; i < row_count; i++) {
        if (rows[i].gpu == gpu && strcmp(rows[i].call, call) == 0) {
            *values = rows[i].values;
            return rows[i].code;
        }
    }
    return NOT_SUPPORTED;
}

static int answer(gpu_t *gpu, const char *name, long argument, const char **values)
{
    int s = state(gpu);
    char text[24] = "";
    if (argument != NO_ARGUMENT) snprintf(text, sizeof text, "%ld", argument);
    return s ? s : look_up(name, text, gpu->index, values);
}

/* Reads the next of the values; 0 behind the last one. */
static u64 next(const char **values)
{
    char *end;
    int grows = **values == '@';
    u64 value = strtoull(*values + grows, &end, 10);
    *values = *end ? end + 1 : end;
    return grows ? (u64)(now_s() * (double)value) : value;
}

/* A function of NVML by what it writes: one number, one of a kind, two numbers, a text. */
#define ONE(name, type) \
    int name(gpu_t *gpu, type *a) \
    { const char *v; int s = answer(gpu, #name, NO_ARGUMENT, &v); if (!s) *a = (type)next(&v); return s; }
#define ONE_OF(name, type) \
    int name(gpu_t *gpu, unsigned kind, type *a) \
    { const char *v; int s = answer(gpu, #name, kind, &v); if (!s) *a = (type)next(&v); return s; }
#define TWO(name, type) \
    int name(gpu_t *gpu, type *a, type *b) \
    { const char *v; int s = answer(gpu, #name, NO_ARGUMENT, &v); if (!s) { *a = (type)next(&v); *b = (type)next(&v); } return s; }
#define TEXT(name) \
    int name(gpu_t *gpu, char *text, unsigned size) \
    { const char *v; int s = answer(gpu, #name, NO_ARGUMENT, &v); if (!s) snprintf(text, size, "%s", v); return s; }
#define SYSTEM_TEXT(name) \
    int name(char *text, unsigned size) \
    { const char *v; int s = look_up(#name, "", 0, &v); if (!s) snprintf(text, size, "%s", v); return s; }

static int system_number(const char *name, unsigned *value)
{
    const char *values;
    int s = look_up(name, "", 0, &values);
    if (!s) *value = (unsigned)next(&values);
    return s;
}

int nvmlInitWithFlags(unsigned flags)
{
    for (int i = 0; i < MAX_GPUS; i++) gpus[i] = (gpu_t){i, 0};
    return (int)setting("NVML_STAND_IN_INIT", SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }
SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
int nvmlSystemGetCudaDriverVersion_v2(unsigned *v) { return system_number("nvmlSystemGetCudaDriverVersion_v2", v); }
int nvmlDeviceGetCount_v2(unsigned *count) { return system_number("nvmlDeviceGetCount", count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
    unsigned count = 0;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count || index >= MAX_GPUS) return INVALID;
    *gpu = &gpus[index];
    return state(*gpu);
}

/* By the UUID of a GPU, or of an instance, for which the table has the number of its GPU. */
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu)
{
    const char *values;
    for (int i = 0; i < MAX_GPUS; i++)
        if (!look_up("nvmlDeviceGetUUID", "", i, &values) && strcmp(uuid, values) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, gpu);
    if (look_up("nvmlDeviceGetHandleByUUID", uuid, 0, &values)) return NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2((unsigned)next(&values), gpu);
}

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
ONE_OF(nvmlDeviceGetMaxClockInfo, unsigned)
ONE_OF(nvmlDeviceGetClockInfo, unsigned)
ONE_OF(nvmlDeviceGetApplicationsClock, unsigned)
ONE_OF(nvmlDeviceGetDefaultApplicationsClock, unsigned)
ONE_OF(nvmlDeviceGetTemperatureThreshold, unsigned)
ONE_OF(nvmlDeviceGetTemperature, unsigned)
ONE_OF(nvmlDeviceGetPcieThroughput, unsigned)
ONE_OF(nvmlDeviceGetNvLinkState, unsigned)
ONE_OF(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned)
ONE(nvmlDeviceGetPowerManagementLimit, unsigned)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned)
ONE(nvmlDeviceGetPersistenceMode, unsigned)
ONE(nvmlDeviceGetComputeMode, unsigned)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
ONE(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
ONE(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
ONE(nvmlDeviceGetPowerUsage, unsigned)
ONE(nvmlDeviceGetCurrentClocksEventReasons, u64)
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, u64)
ONE(nvmlDeviceGetTotalEnergyConsumption, u64)
TWO(nvmlDeviceGetPowerManagementLimitConstraints, unsigned)
TWO(nvmlDeviceGetMigMode, unsigned)
TWO(nvmlDeviceGetEccMode, unsigned)
TWO(nvmlDeviceGetCudaComputeCapability, int)

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory)
{
    const char *values;
    int s = answer(gpu, "nvmlDeviceGetMemoryInfo", NO_ARGUMENT, &values);
    if (!s) { memory->total = next(&values); memory->free = next(&values); memory->used = next(&values); }
    return s;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilization_t *rates)
{
    const char *values;
    int s = answer(gpu, "nvmlDeviceGetUtilizationRates", NO_ARGUMENT, &values);
    if (!s) { rates->gpu = (unsigned)next(&values); rates->memory = (unsigned)next(&values); }
    return s;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *room, process_t *processes)
{
    const char *values;
    int s = answer(gpu, "nvmlDeviceGetComputeRunningProcesses", NO_ARGUMENT, &values);
    unsigned count = 0, there = *room;
    if (s) return s;
    for (; *values; count++) {
        unsigned pid = (unsigned)next(&values);
        if (count < there) processes[count] = (process_t){pid, 1ULL << 28, ~0u, ~0u};
    }
    *room = count;
    return count > there ? TOO_SMALL : SUCCESS;
}

static int put_pci(int s, const char *bus_id, pci_t *pci)
{
    if (s) return s;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus_id);
    return s;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    const char *bus_id;
    int s = answer(gpu, "nvmlDeviceGetPciInfo", NO_ARGUMENT, &bus_id);
    return put_pci(s, bus_id, pci);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t *gpu, unsigned link, pci_t *pci)
{
    const char *bus_id;
    int s = answer(gpu, "nvmlDeviceGetNvLinkRemotePciInfo", link, &bus_id);
    return put_pci(s, bus_id, pci);
}

static int pair_answer(gpu_t *a, gpu_t *b, const char *name, const char *kind, unsigned *value)
{
    const char *values;
    char argument[40];
    int s = state(a) ? state(a) : state(b);
    if (s) return s;
    snprintf(argument, sizeof argument, "gpu%d%s", b->index, kind);
    s = look_up(name, argument, a->index, &values);
    if (!s) *value = (unsigned)next(&values);
    return s;
}

int nvmlDeviceGetTopologyCommonAncestor(gpu_t *a, gpu_t *b, unsigned *level)
{
    return pair_answer(a, b, "nvmlDeviceGetTopologyCommonAncestor", "", level);
}

int nvmlDeviceGetP2PStatus(gpu_t *a, gpu_t *b, unsigned kind, unsigned *status)
{
    char text[16];
    snprintf(text, sizeof text, " %u", kind);
    return pair_answer(a, b, "nvmlDeviceGetP2PStatus", text, status);
}

/* Values of 32 bits leave the upper half as it was. */
int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields)
{
    int s = state(gpu);
    for (int i = 0; !s && i < count; i++) {
        const char *values;
        char argument[16];
        snprintf(argument, sizeof argument, "%u", fields[i].field);
        fields[i].result = look_up("nvmlDeviceGetFieldValues", argument, gpu->index, &values);
        if (fields[i].result) continue;
        u64 value = next(&values);
        fields[i].type = next(&values) ? UNSIGNED_INT : UNSIGNED_LONG_LONG;
        fields[i].value = fields[i].type == UNSIGNED_INT ? (0xBADULL << 32 | value) : value;
    }
    return s;
}
