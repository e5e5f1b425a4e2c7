/* A stand-in for libnvidia-ml.so.1: it plays the cards that a scenario file describes, so that the real pynvml
 * can be tested on a machine without a GPU. STANDIN_NVML_SCENARIO names the file; a changed file is read again
 * at the next call, so a test can edit it while a guard waits. -DOLD_DRIVER leaves out what came with R510.
 *
 *   [system]                      epoch = SECONDS      zero of all times below; default: the first call of this process
 *                                 error = ...          as for a card
 *   [gpu], and [mig] below its parent; an [hole] is a MIG position without a device
 *     name = TEXT   uuid = TEXT   capability = 9.0     mig = 1      scrambled = 1 (32-byte process records, R535.43 to .98)
 *     total_mib = N  reserved_mib = N
 *     free_mib = SERIES           default: total - reserved - what the listed processes use
 *     process = PID KINDS USED_MIB|N/A [FROM UNTIL]    KINDS of c (compute), g (graphics), m (MPS); listed in that time
 *     error = PATTERN SERIES [after CALLS]             shell pattern of function names -> NVML code, 0 = none
 *   SERIES: VALUE, or VALUE@SECONDS ... in rising order; a step stays until the next
 */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { MAX_GPUS = 16, MAX_SLICES = 7, MAX_STEPS = 16, MAX_ERRORS = 8, TEXT = 96 };
static const unsigned long long MIB = 1ULL << 20, NOT_AVAILABLE = ~0ULL;

typedef struct { int count; double value[MAX_STEPS], at[MAX_STEPS]; } Series;
typedef struct { char pattern[TEXT]; Series code; long after, calls; } Injected;
typedef struct { unsigned pid; char kinds[4]; unsigned long long used; double from, until; } Process;
typedef struct Device {
    char name[TEXT], uuid[TEXT];
    int mig, scrambled, major, minor, hole, process_count, process_room, error_count, slice_count;
    unsigned long long total, reserved;
    Series free_mib;
    Process *processes;
    Injected errors[MAX_ERRORS];
    struct Device *slices;
} Device;

static Device gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES], whole;
static int gpu_count, initialized;
static double epoch = -1, first_call = -1;
static struct stat seen;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall = now.tv_sec + now.tv_nsec / 1e9;
    if (first_call < 0) first_call = wall;
    return wall - (epoch >= 0 ? epoch : first_call);
}

static double series_now(const Series *series) {
    double now = seconds_now(), value = series->value[0];
    for (int i = 1; i < series->count && series->at[i] <= now; i++) value = series->value[i];
    return value;
}

static int parse_series(const char *text, Series *series) {
    char *end;
    for (series->count = 0; *text && series->count < MAX_STEPS; series->count++, text = end) {
        series->value[series->count] = strtod(text, &end);
        if (end == text) return series->count > 0;
        series->at[series->count] = 0;
        if (*end == '@') series->at[series->count] = strtod(end + 1, &end);
        while (*end == ' ') end++;
    }
    return series->count > 0;
}

static int parse_error(const char *text, Device *device) {
    if (device->error_count == MAX_ERRORS) return 0;
    Injected *error = &device->errors[device->error_count++];
    const char *after = strstr(text, " after ");
    int used = 0;
    if (sscanf(text, "%95s %n", error->pattern, &used) != 1) return 0;
    error->after = after ? atol(after + 7) : 0;
    error->calls = 0;
    return parse_series(text + used, &error->code);
}

static int parse_process(const char *text, Device *device) {
    if (device->process_count == device->process_room) {
        device->process_room = device->process_room * 2 + 8;
        device->processes = realloc(device->processes, device->process_room * sizeof(Process));
    }
    Process *process = &device->processes[device->process_count++];
    char used[32];
    process->from = 0;
    process->until = INFINITY;
    if (sscanf(text, "%u %3s %31s %lf %lf", &process->pid, process->kinds, used, &process->from, &process->until) < 3) return 0;
    process->used = strcmp(used, "N/A") ? strtoull(used, NULL, 10) * MIB : NOT_AVAILABLE;
    return 1;
}

static int parse_line(const char *key, const char *value, Device *device) {
    if (!strcmp(key, "name")) return snprintf(device->name, TEXT, "%s", value) < TEXT;
    if (!strcmp(key, "uuid")) return snprintf(device->uuid, TEXT, "%s", value) < TEXT;
    if (!strcmp(key, "capability")) return sscanf(value, "%d.%d", &device->major, &device->minor) == 2;
    if (!strcmp(key, "mig")) return sscanf(value, "%d", &device->mig) == 1;
    if (!strcmp(key, "scrambled")) return sscanf(value, "%d", &device->scrambled) == 1;
    if (!strcmp(key, "total_mib")) return (device->total = strtoull(value, NULL, 10) * MIB), 1;
    if (!strcmp(key, "reserved_mib")) return (device->reserved = strtoull(value, NULL, 10) * MIB), 1;
    if (!strcmp(key, "free_mib")) return parse_series(value, &device->free_mib);
    if (!strcmp(key, "process")) return parse_process(value, device);
    if (!strcmp(key, "error")) return parse_error(value, device);
    if (!strcmp(key, "epoch")) return sscanf(value, "%lf", &epoch) == 1;
    return 0;
}

static void clear(Device *device) {
    Process *processes = device->processes;
    int room = device->process_room;
    memset(device, 0, sizeof *device);
    device->processes = processes;
    device->process_room = room;
}

static Device *open_section(const char *name) {
    if (!strcmp(name, "[system]")) return &whole;
    if (!strcmp(name, "[gpu]") && gpu_count < MAX_GPUS) {
        Device *gpu = &gpus[gpu_count];
        clear(gpu);
        gpu->slices = slices[gpu_count++];
        return gpu;
    }
    Device *parent = gpu_count ? &gpus[gpu_count - 1] : NULL;
    if (!parent || parent->slice_count == MAX_SLICES || (strcmp(name, "[mig]") && strcmp(name, "[hole]"))) return NULL;
    Device *slice = &parent->slices[parent->slice_count++];
    clear(slice);
    slice->hole = !strcmp(name, "[hole]");
    return slice;
}

/* Addresses of devices stay the same over a reload, so handles stay valid. */
static int load(FILE *file) {
    char line[512];
    Device *device = NULL;
    gpu_count = 0;
    epoch = -1;
    clear(&whole);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        char *end = line + strcspn(line, "\r\n"), *equals;
        while (end > line && end[-1] == ' ') end--;
        *end = 0;
        if (!*line || *line == '#') continue;
        int good = *line == '[' ? (device = open_section(line)) != NULL
                                : device && (equals = strstr(line, " = ")) && (*equals = 0, parse_line(line, equals + 3, device));
        if (!good) return fprintf(stderr, "stand-in nvml: scenario line %d is not understood: %s\n", number, line), 0;
    }
    return 1;
}

static int refresh(void) {
    const char *path = getenv("STANDIN_NVML_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now)) return fprintf(stderr, "stand-in nvml: no scenario at %s\n", path ? path : "STANDIN_NVML_SCENARIO"), 0;
    if (now.st_dev == seen.st_dev && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        !memcmp(&now.st_mtim, &seen.st_mtim, sizeof now.st_mtim) && !memcmp(&now.st_ctim, &seen.st_ctim, sizeof now.st_ctim))
        return 1;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int good = load(file);
    fclose(file);
    seen = good ? now : (struct stat){0};
    return good;
}

static int injected(Device *device, const char *function) {
    for (int i = 0; i < device->error_count; i++) {
        Injected *error = &device->errors[i];
        if (fnmatch(error->pattern, function, 0) || error->calls++ < error->after) continue;
        int code = (int)series_now(&error->code);
        if (code) return code;
    }
    return SUCCESS;
}

static int enter(const char *function) {
    if (!refresh()) return UNKNOWN;
    seconds_now();
    return injected(&whole, function);
}

static int enter_device(Device *device, const char *function) {
    if (!initialized) return UNINITIALIZED;
    int code = enter(function);
    if (code) return code;
    return device ? injected(device, function) : INVALID_ARGUMENT;
}

#define ENTER() do { int code_ = enter(__func__); if (code_) return code_; } while (0)
#define ENTER_READY() do { if (!initialized) return UNINITIALIZED; ENTER(); } while (0)
#define ENTER_DEVICE(d) do { int code_ = enter_device(d, __func__); if (code_) return code_; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(); initialized++; return SUCCESS; }
int nvmlShutdown(void) { if (!initialized) return UNINITIALIZED; initialized--; return SUCCESS; }

const char *nvmlErrorString(int code) {
    static char text[48];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}

static int copy(char *to, unsigned room, const char *text) {
    return snprintf(to, room, "%s", text) < (int)room ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlSystemGetDriverVersion(char *to, unsigned room) { ENTER_READY(); return copy(to, room, "580.105.08"); }
int nvmlSystemGetNVMLVersion(char *to, unsigned room) { ENTER_READY(); return copy(to, room, "13.580.105.08"); }
int nvmlSystemGetCudaDriverVersion(int *version) { ENTER_READY(); *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER_READY(); *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { ENTER_READY(); *count = gpu_count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ENTER_READY();
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return injected(*device, __func__);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    ENTER_READY();
    for (int i = 0; i < gpu_count; i++) {
        if (!strcmp(gpus[i].uuid, uuid)) { *device = &gpus[i]; return injected(*device, __func__); }
        for (int j = 0; j < gpus[i].slice_count; j++)
            if (!strcmp(gpus[i].slices[j].uuid, uuid)) { *device = &gpus[i].slices[j]; return SUCCESS; }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
    ENTER_DEVICE(device);
    if (device < gpus || device >= gpus + MAX_GPUS) return NOT_SUPPORTED;
    *index = device - gpus;
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *to, unsigned room) { ENTER_DEVICE(device); return copy(to, room, device->uuid); }
int nvmlDeviceGetName(Device *device, char *to, unsigned room) { ENTER_DEVICE(device); return copy(to, room, device->name); }

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    ENTER_DEVICE(device);
    *major = device->major;
    *minor = device->minor;
    return device->major ? SUCCESS : NOT_SUPPORTED;
}

static int listed_now(const Process *process) {
    double now = seconds_now();
    return process->from <= now && now < process->until;
}

static unsigned long long free_now(Device *device) {
    if (device->free_mib.count) return (unsigned long long)series_now(&device->free_mib) * MIB;
    unsigned long long left = device->total - device->reserved;
    for (int i = 0; i < device->process_count; i++) {
        const Process *process = &device->processes[i];
        if (process->used != NOT_AVAILABLE && listed_now(process)) left -= process->used < left ? process->used : left;
    }
    return left;
}

/* v1 counts the reserved part as used. */
int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long memory[3]) {
    ENTER_DEVICE(device);
    memory[0] = device->total;
    memory[1] = free_now(device);
    memory[2] = memory[0] - memory[1];
    return SUCCESS;
}

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    ENTER_DEVICE(device);
    if (memory->version != (2u << 24 | sizeof *memory)) return ARGUMENT_VERSION_MISMATCH;
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->free = free_now(device);
    memory->used = memory->total - memory->reserved - memory->free;
    return SUCCESS;
}
#endif

static int list(Device *device, char kind, unsigned *count, char *to) {
    unsigned room = *count, found = 0, record = device->scrambled ? 32 : 24;
    for (int i = 0; i < device->process_count; i++) {
        const Process *process = &device->processes[i];
        if (!strchr(process->kinds, kind) || !listed_now(process)) continue;
        if (found++ >= room || !to) continue;
        char *entry = to + (found - 1) * record;
        memset(entry, 0, record);
        memcpy(entry, &process->pid, 4);
        memcpy(entry + 8, &process->used, 8);
        memset(entry + 16, 0xff, 8); /* no MIG instance */
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(function, kind) \
    int function(Device *device, unsigned *count, char *to) { ENTER_DEVICE(device); return list(device, kind, count, to); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')
#ifndef OLD_DRIVER
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')
#endif

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(device);
    if (device < gpus || device >= gpus + MAX_GPUS || device->major < 8) return NOT_SUPPORTED;
    *current = *pending = device->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    ENTER_DEVICE(device);
    *count = device->mig ? MAX_SLICES : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    ENTER_DEVICE(device);
    if (index >= (unsigned)device->slice_count || device->slices[index].hole) return NOT_FOUND;
    *slice = &device->slices[index];
    return SUCCESS;
}
