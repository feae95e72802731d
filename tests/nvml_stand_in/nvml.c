/* A small stand-in for NVIDIA's libnvidia-ml.so.1: two GPUs, as much of NVML as scalebench asks for.
 *
 * GPU 1 has no energy counter, and can be lost half-way. What the tests set stands in variables NVML_STAND_IN_*, read
 * at each call (__init__.py lists them). Counters advance with the clock: energy with the power, NVLink 1 GiB/s.
 * Numbers of return codes, fields and reasons are those of nvml.h, fixed by its binary interface.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, IS_LOST = 15 };
enum { GPUS = 2, SM = 1, MEMORY = 2 };

typedef struct { int index; int calls; } gpu_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned field, scope; long long at, latency; unsigned type; int result; unsigned long long value; } field_t;

static gpu_t gpus[GPUS] = {{0, 0}, {1, 0}};
static const unsigned power_mw[GPUS] = {250000, 150000};

/* A number that the test set, of one GPU or of all, or what there is without. */
static long setting(const char *name, int gpu, long otherwise)
{
    char key[80];
    snprintf(key, sizeof key, "NVML_STAND_IN_%s_%d", name, gpu);
    const char *text = getenv(key);
    if (!text) {
        snprintf(key, sizeof key, "NVML_STAND_IN_%s", name);
        text = getenv(key);
    }
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
    if (gpu->index != 1) return SUCCESS;
    const char *file = getenv("NVML_STAND_IN_LOST_FILE");
    if (file && access(file, F_OK) == 0) return IS_LOST;
    return gpu->calls++ >= setting("LOST_AFTER", 1, 1L << 40) ? IS_LOST : SUCCESS;
}

/* One figure about one GPU: a function of that name that writes it. */
#define TELL(name, type, expression) \
    int name(gpu_t *gpu, type *value) { int s = state(gpu); if (!s) *value = (expression); return s; }
#define TELL_OF_KIND(name, type, expression) \
    int name(gpu_t *gpu, unsigned kind, type *value) { int s = state(gpu); if (!s) *value = (expression); return s; }
#define TELL_TWO(name, type, first, second) \
    int name(gpu_t *gpu, type *a, type *b) { int s = state(gpu); if (!s) { *a = first; *b = second; } return s; }
#define TEXT(name, ...) \
    int name(gpu_t *gpu, char *text, unsigned size) { int s = state(gpu); if (!s) snprintf(text, size, __VA_ARGS__); return s; }

int nvmlInitWithFlags(unsigned flags)
{
    gpus[1].calls = 0;
    return (int)setting("INIT", 0, SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "12.550.54.15"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
    if (index >= GPUS) return INVALID;
    *gpu = &gpus[index];
    return state(*gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu)
{
    for (int i = 0; i < GPUS; i++) {
        char own[64];
        snprintf(own, sizeof own, "GPU-%d0000000-0000-4000-8000-00000000000%d", i, i);
        if (strcmp(uuid, own) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, gpu);
    }
    return NOT_FOUND;
}

TEXT(nvmlDeviceGetName, "NVIDIA Stand-in %d", gpu->index)
TEXT(nvmlDeviceGetUUID, "GPU-%d0000000-0000-4000-8000-00000000000%d", gpu->index, gpu->index)

/* What stays as it is. */
TELL_OF_KIND(nvmlDeviceGetMaxClockInfo, unsigned, kind == SM ? setting("SM_CLOCK_MAX", gpu->index, 1410) : kind == MEMORY ? 1215 : 1290)
TELL_OF_KIND(nvmlDeviceGetApplicationsClock, unsigned, kind == SM ? 1095 : 1215)
TELL_OF_KIND(nvmlDeviceGetTemperatureThreshold, unsigned, kind == 0 ? 92 : 89)
TELL(nvmlDeviceGetEnforcedPowerLimit, unsigned, 400000)
TELL(nvmlDeviceGetPowerManagementLimit, unsigned, 400000)
TELL(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 400000)
TELL_TWO(nvmlDeviceGetPowerManagementLimitConstraints, unsigned, 100000, 400000)
TELL(nvmlDeviceGetPersistenceMode, unsigned, 1)
TELL(nvmlDeviceGetComputeMode, unsigned, 0)
TELL(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 4)
TELL(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
TELL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 4)
TELL(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
TELL_TWO(nvmlDeviceGetMigMode, unsigned, (unsigned)setting("MIG", gpu->index, 0), (unsigned)setting("MIG", gpu->index, 0))
TELL_TWO(nvmlDeviceGetEccMode, unsigned, 1, 1)
TELL_TWO(nvmlDeviceGetCudaComputeCapability, int, 8, 0)

/* What a monitor watches. */
TELL_OF_KIND(nvmlDeviceGetClockInfo, unsigned, kind == SM ? setting("SM_CLOCK", gpu->index, 1380) : setting("MEM_CLOCK", gpu->index, 1215))
TELL_OF_KIND(nvmlDeviceGetTemperature, unsigned, setting("TEMPERATURE", gpu->index, 60 + gpu->index))
TELL_OF_KIND(nvmlDeviceGetPcieThroughput, unsigned, kind == 0 ? 1000 : 2000) /* KB/s: 0 is sent, 1 received */
TELL(nvmlDeviceGetPowerUsage, unsigned, power_mw[gpu->index])
TELL(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, setting("REASONS", gpu->index, 0))
TELL(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, setting("REASONS", gpu->index, 0))
TELL(nvmlDeviceGetMemoryInfo, memory_t, ((memory_t){40ULL << 30, 39ULL << 30, 1ULL << 30}))
TELL(nvmlDeviceGetUtilizationRates, utilization_t, ((utilization_t){gpu->index ? 40 : 80, 20}))

int nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *mj)
{
    int s = state(gpu);
    if (s) return s;
    if (gpu->index == 1) return NOT_SUPPORTED;
    *mj = (unsigned long long)(now_s() * power_mw[0]);
    return SUCCESS;
}

/* NVML_STAND_IN_PROCESSES_<gpu>: "pid pid ..." */
int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *room, process_t *found)
{
    int s = state(gpu);
    if (s) return s;
    char key[40];
    snprintf(key, sizeof key, "NVML_STAND_IN_PROCESSES_%d", gpu->index);
    const char *text = getenv(key);
    unsigned count = 0, there = *room;
    for (char *end; text; text = end) {
        unsigned pid = (unsigned)strtoul(text, &end, 10);
        if (end == text) break;
        if (count < there) found[count] = (process_t){pid, 1ULL << 28, ~0u, ~0u};
        count++;
    }
    *room = count;
    return count > there ? TOO_SMALL : SUCCESS;
}

/* Where they are, and what lies between them. */
static void put_pci(pci_t *pci, int index)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x0A + 0x10 * (unsigned)index;
    pci->id = 0x20B010DE;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    int s = state(gpu);
    if (!s) put_pci(pci, gpu->index);
    return s;
}

int nvmlDeviceGetTopologyCommonAncestor(gpu_t *a, gpu_t *b, unsigned *level)
{
    int s = state(a) ? state(a) : state(b);
    if (!s) *level = (unsigned)setting("ANCESTOR", 0, 20);
    return s;
}

int nvmlDeviceGetP2PStatus(gpu_t *a, gpu_t *b, unsigned kind, unsigned *status)
{
    int s = state(a) ? state(a) : state(b);
    if (!s) *status = (unsigned)setting("P2P", 0, 0);
    return s;
}

static int link_state(gpu_t *gpu, unsigned link)
{
    int s = state(gpu);
    return s ? s : link < (unsigned)setting("NVLINKS", 0, 0) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *active)
{
    int s = link_state(gpu, link);
    if (!s) *active = 1;
    return s;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(gpu_t *gpu, unsigned link, unsigned *type)
{
    int s = link_state(gpu, link);
    if (!s) *type = 0; /* a GPU */
    return s;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t *gpu, unsigned link, pci_t *pci)
{
    int s = link_state(gpu, link);
    if (!s) put_pci(pci, 1 - gpu->index);
    return s;
}

/* Fields 138 and 139: KiB sent and received over NVLink, all links together. */
int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields)
{
    int s = state(gpu);
    for (int i = 0; !s && i < count; i++) {
        int known = (fields[i].field == 138 || fields[i].field == 139) && setting("NVLINKS", 0, 0) > 0;
        fields[i].type = 3; /* unsigned long long */
        fields[i].result = known ? SUCCESS : NOT_SUPPORTED;
        if (known) fields[i].value = (unsigned long long)(now_s() * 1048576.0);
    }
    return s;
}
