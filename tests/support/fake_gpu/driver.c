/* A driver without a GPU: what Numba and cuda.core ask of libcuda.so.1, for an H100 that runs nothing.

Memory is memory of the host, and its addresses are never used again. A launch computes nothing. It looks at its arguments: an address
in memory that was freed ends the process with a message, and so do a stream, an event or a graph that was destroyed. A graph looks at the
arguments of all its launches whenever it is launched. Work of streams is done at once. The query of an event may
answer "not ready" until the host has waited for the event or for the device.

Captures follow the CUDA driver's rules. A wait for the device breaks all captures off. A wait for a captured stream or event breaks
its capture off, and so does cuStreamGetId of a captured stream.

Numbers of error codes and attributes are those of CUDA's driver API. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
  SUCCESS = 0, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, ILLEGAL_STATE = 401, NOT_READY = 600, NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURED_EVENT = 907
};

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static void unlock(int *_) { (void)_; pthread_mutex_unlock(&mutex); }
/* Until the end of the function no other thread is in the driver. */
#define ALONE __attribute__((cleanup(unlock))) int alone = pthread_mutex_lock(&mutex)

static struct { long launches, graphs, replays, broken, allocated, freed; } counts;

static void fault(const char *what, const char *where, uint64_t value) {
  dprintf(2, "fake GPU: %s, %s %#lx\n", what, where, (unsigned long)value);
  abort();
}

/* ---- memory */

enum { PAGE = 4096 };
static const uint64_t TOTAL = 8ull << 30, RESERVED = 1ull << 44;
typedef struct { uint64_t begin, end; int live; } Allocation;
static Allocation *allocations; /* in the order of their addresses */
static size_t allocated, room;
static uint64_t first, next, in_use;

static Allocation *allocation_of(uint64_t address) {
  size_t low = 0, high = allocated;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (allocations[middle].end <= address) low = middle + 1;
    else high = middle;
  }
  return low < allocated && allocations[low].begin <= address ? allocations + low : NULL;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ALONE;
  if (!first) {
    void *found = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) fault("no addresses", "mmap", RESERVED);
    first = next = (uint64_t)found;
  }
  uint64_t whole = bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
  if (in_use + whole > TOTAL) return OUT_OF_MEMORY;
  if (mprotect((void *)next, whole, PROT_READ | PROT_WRITE)) fault("no memory", "mprotect", whole);
  if (allocated == room) allocations = realloc(allocations, (room = 2 * room + PAGE) * sizeof *allocations);
  allocations[allocated++] = (Allocation){next, next + whole, 1};
  *address = next;
  next += whole + PAGE; /* nothing lies right behind it */
  in_use += whole;
  counts.allocated++;
  return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
  ALONE;
  if (!address) return SUCCESS;
  Allocation *found = allocation_of(address);
  if (!found || found->begin != address) fault("freed, but never allocated", "cuMemFree", address);
  if (!found->live) fault("freed twice", "cuMemFree", address);
  found->live = 0;
  in_use -= found->end - found->begin;
  madvise((void *)address, found->end - address, MADV_DONTNEED);
  mprotect((void *)address, found->end - address, PROT_NONE);
  counts.freed++;
  return SUCCESS;
}

int cuMemGetInfo_v2(size_t *left, size_t *total) {
  ALONE;
  *total = TOTAL, *left = TOTAL - in_use;
  return SUCCESS;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { *address = malloc(bytes + 1); return SUCCESS; }
int cuMemFreeHost(void *address) { free(address); return SUCCESS; }
int cuMemHostGetDevicePointer_v2(uint64_t *found, void *address, unsigned flags) { *found = (uint64_t)address; return SUCCESS; }

static void must_be_live(uint64_t value, const char *where) {
  Allocation *found = allocation_of(value);
  if (found && !found->live) fault("freed memory is used", where, value);
}

/* ---- kernels */

enum { KERNELS = 16, PARAMETER = 0x17, WITH_SIZE = 4, ADDRESS = 8 };
typedef struct { char *name; int parameters; unsigned long long addresses[4]; } Kernel; /* addresses: a bit for each parameter of 8 bytes */
typedef struct { char *image; Kernel kernels[KERNELS]; int count; } Library;

/* Looks up the parameters in the machine code's notes (.nv.info.NAME): the number of each, and its bytes in the upper 14 bits of a word. */
static void read_parameters(const char *image, Kernel *kernel) {
  const Elf64_Ehdr *head = (const void *)image;
  const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
  const char *names = image + sections[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++) {
    const char *section = names + sections[i].sh_name;
    if (strncmp(section, ".nv.info.", 9) || strcmp(section + 9, kernel->name)) continue;
    const unsigned char *at = (const void *)(image + sections[i].sh_offset), *end = at + sections[i].sh_size;
    for (; at + 4 <= end; at += 4 + (at[0] == WITH_SIZE ? at[2] | at[3] << 8 : 0)) {
      if (at[1] != PARAMETER) continue;
      unsigned number = at[8] | at[9] << 8, last;
      memcpy(&last, at + 12, sizeof last);
      if (number >= 256) fault("too many parameters", kernel->name, number);
      kernel->parameters++;
      if (last >> 18 == ADDRESS) kernel->addresses[number / 64] |= 1ull << number % 64;
    }
  }
}

static int is_address(const Kernel *kernel, int number) { return kernel->addresses[number / 64] >> number % 64 & 1; }

static size_t bytes_of(const char *image) {
  const Elf64_Ehdr *head = (const void *)image;
  const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
  size_t end = head->e_shoff + head->e_shnum * sizeof *sections;
  for (int i = 0; i < head->e_shnum; i++) {
    size_t last = sections[i].sh_offset + sections[i].sh_size;
    if (sections[i].sh_type != SHT_NOBITS && last > end) end = last;
  }
  return end;
}

int cuLibraryLoadData(Library **made, const char *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  if (memcmp(image, ELFMAG, SELFMAG)) fault("loaded, but no machine code", "cuLibraryLoadData", 0);
  Library *library = *made = calloc(1, sizeof *library);
  size_t bytes = bytes_of(image);
  library->image = memcpy(malloc(bytes), image, bytes);
  return SUCCESS;
}

int cuLibraryGetKernel(Kernel **found, Library *library, const char *name) {
  ALONE;
  for (int i = 0; i < library->count; i++)
    if (!strcmp(library->kernels[i].name, name)) return *found = library->kernels + i, SUCCESS;
  if (library->count == KERNELS) fault("too many kernels", "cuLibraryGetKernel", KERNELS);
  Kernel *kernel = *found = library->kernels + library->count++;
  *kernel = (Kernel){.name = strdup(name)};
  read_parameters(library->image, kernel);
  return SUCCESS;
}

int cuLibraryUnload(Library *library) { return SUCCESS; } /* kernels may still be known */
int cuKernelGetFunction(Kernel **found, Kernel *kernel) { *found = kernel; return SUCCESS; }
int cuKernelSetAttribute(int which, int value, Kernel *kernel, int device) { return SUCCESS; }
int cuKernelGetAttribute(int *value, int which, Kernel *kernel, int device) { *value = which ? 0 : 1024; return SUCCESS; }
int cuFuncGetAttribute(int *value, int which, Kernel *kernel) { *value = which ? 0 : 1024; return SUCCESS; }

/* ---- streams, events and graphs */

typedef struct Launch { Kernel *kernel; struct Launch *before; uint64_t values[]; } Launch;
typedef struct Capture { Launch *last; int broken, open; } Capture;
typedef struct Stream { int destroyed, begins; Capture *capture; uint64_t id; struct Stream *before; } Stream;
typedef struct { int destroyed; Capture *capture; long recorded, passed; } Event; /* when, by recordings counted */
typedef struct { int destroyed; Launch *last; } Graph;

enum { NAMED = 2 }; /* streams up to that number are the default ones */
static Stream default_stream;
static long recordings, waited_for; /* of all events; of those the last one that a wait for the device has passed */
enum { CAPTURES = 256 };
static Capture *open_captures[CAPTURES];

static Stream *alive(Stream *stream, const char *where) {
  if ((uint64_t)stream <= NAMED) return &default_stream;
  if (stream->destroyed) fault("a destroyed stream", where, (uint64_t)stream);
  return stream;
}

static Event *known(Event *event, const char *where) {
  if (event->destroyed) fault("a destroyed event", where, (uint64_t)event);
  return event;
}

static int is_open(const Capture *capture) { return capture && capture->open; }

/* Whoever waits for something that is captured breaks the capture off. */
static int waited(Capture *capture, int refusal) {
  if (!is_open(capture)) return SUCCESS;
  capture->broken = 1;
  return refusal;
}

static Stream *gone; /* the stream that was destroyed last and whose address is free */

/* A new stream often has the address of one that was destroyed. */
int cuStreamCreate(Stream **made, unsigned flags) {
  ALONE;
  static uint64_t streams = NAMED;
  if (gone && rand() % 2) *made = gone, gone = gone->before;
  else *made = malloc(sizeof **made);
  **made = (Stream){.id = ++streams};
  return SUCCESS;
}

int cuStreamCreateWithPriority(Stream **made, unsigned flags, int priority) { return cuStreamCreate(made, flags); }

int cuStreamDestroy_v2(Stream *stream) {
  ALONE;
  alive(stream, "cuStreamDestroy")->destroyed = 1;
  stream->before = gone, gone = stream;
  return SUCCESS;
}

int cuStreamGetId(Stream *stream, uint64_t *id) {
  ALONE;
  stream = alive(stream, "cuStreamGetId");
  *id = stream->id;
  return waited(stream->capture, CAPTURE_UNSUPPORTED);
}

int cuStreamSynchronize(Stream *stream) {
  ALONE;
  return waited(alive(stream, "cuStreamSynchronize")->capture, CAPTURE_UNSUPPORTED);
}

int cuCtxSynchronize(void) {
  ALONE;
  int answer = SUCCESS;
  for (int i = 0; i < CAPTURES; i++) answer |= waited(open_captures[i], CAPTURE_UNSUPPORTED);
  if (answer == SUCCESS) waited_for = recordings;
  return answer;
}

int cuStreamIsCapturing(Stream *stream, int *status) {
  ALONE;
  Capture *capture = alive(stream, "cuStreamIsCapturing")->capture;
  *status = is_open(capture) ? 1 + capture->broken : 0;
  return SUCCESS;
}

int cuStreamBeginCapture_v2(Stream *stream, int mode) {
  ALONE;
  stream = alive(stream, "cuStreamBeginCapture");
  if (stream == &default_stream || is_open(stream->capture)) return ILLEGAL_STATE;
  int place = 0;
  while (place < CAPTURES && is_open(open_captures[place])) place++;
  if (place == CAPTURES) fault("too many captures", "cuStreamBeginCapture", CAPTURES);
  open_captures[place] = stream->capture = calloc(1, sizeof(Capture));
  stream->capture->open = stream->begins = 1;
  return SUCCESS;
}

int cuStreamEndCapture(Stream *stream, Graph **made) {
  ALONE;
  stream = alive(stream, "cuStreamEndCapture");
  Capture *capture = stream->capture;
  if (!is_open(capture) || !stream->begins) return ILLEGAL_STATE;
  capture->open = stream->begins = 0, *made = NULL;
  counts.broken += capture->broken;
  if (capture->broken) return CAPTURE_INVALIDATED;
  *made = calloc(1, sizeof **made), (*made)->last = capture->last;
  return SUCCESS;
}

int cuEventCreate(Event **made, unsigned flags) { *made = calloc(1, sizeof **made); return SUCCESS; }
int cuEventDestroy_v2(Event *event) { ALONE; known(event, "cuEventDestroy")->destroyed = 1; return SUCCESS; }

int cuEventRecord(Event *event, Stream *stream) {
  ALONE;
  known(event, "cuEventRecord")->capture = alive(stream, "cuEventRecord")->capture;
  event->recorded = ++recordings;
  return SUCCESS;
}

int cuEventSynchronize(Event *event) {
  ALONE;
  int answer = waited(known(event, "cuEventSynchronize")->capture, CAPTURED_EVENT);
  if (answer == SUCCESS) event->passed = event->recorded;
  return answer;
}

int cuEventQuery(Event *event) {
  ALONE;
  int answer = waited(known(event, "cuEventQuery")->capture, CAPTURED_EVENT);
  if (answer != SUCCESS) return answer;
  if (event->recorded > event->passed && event->recorded > waited_for && rand() % 3 == 0) return NOT_READY;
  event->passed = event->recorded;
  return SUCCESS;
}

int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
  ALONE;
  Capture *capture = known(event, "cuStreamWaitEvent")->capture;
  stream = alive(stream, "cuStreamWaitEvent");
  if (!is_open(capture) || capture == stream->capture) return SUCCESS;
  if (is_open(stream->capture)) return CAPTURE_MERGE;
  stream->capture = capture;
  return SUCCESS;
}

static int launch(Stream *stream, Kernel *kernel, uint64_t **values) {
  ALONE;
  Capture *capture = alive(stream, kernel->name)->capture;
  counts.launches++;
  for (int i = 0; i < kernel->parameters; i++)
    if (is_address(kernel, i)) must_be_live(*values[i], kernel->name);
  if (!is_open(capture)) return SUCCESS;
  if (capture->broken) return CAPTURE_INVALIDATED;
  Launch *made = malloc(sizeof *made + kernel->parameters * sizeof *made->values);
  made->kernel = kernel, made->before = capture->last, capture->last = made;
  for (int i = 0; i < kernel->parameters; i++) made->values[i] = is_address(kernel, i) ? *values[i] : 0;
  return SUCCESS;
}

typedef struct { unsigned grid[3], block[3], shared; Stream *stream; void *attributes; unsigned count; } How;
int cuLaunchKernelEx(const How *how, Kernel *kernel, uint64_t **values, void **extra) { return launch(how->stream, kernel, values); }
int cuLaunchKernel(Kernel *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared,
                   Stream *stream, uint64_t **values, void **extra) { return launch(stream, kernel, values); }

static void must_be_there(const Graph *graph, const char *where) {
  if (graph->destroyed) fault("a destroyed graph", where, (uint64_t)graph);
}

int cuGraphInstantiateWithFlags(Graph **made, Graph *graph, uint64_t flags) {
  ALONE;
  must_be_there(graph, "cuGraphInstantiate");
  *made = calloc(1, sizeof **made), (*made)->last = graph->last;
  counts.graphs++;
  return SUCCESS;
}

int cuGraphLaunch(Graph *graph, Stream *stream) {
  ALONE;
  must_be_there(graph, "cuGraphLaunch"), alive(stream, "cuGraphLaunch");
  counts.replays++;
  for (Launch *one = graph->last; one; one = one->before)
    for (int i = 0; i < one->kernel->parameters; i++) must_be_live(one->values[i], one->kernel->name);
  return SUCCESS;
}

int cuGraphDestroy(Graph *graph) { ALONE; must_be_there(graph, "cuGraphDestroy"); graph->destroyed = 1; return SUCCESS; }
int cuGraphExecDestroy(Graph *graph) { return cuGraphDestroy(graph); }

/* ---- copies */

static int copy(uint64_t to, uint64_t from, size_t bytes, Stream *stream, const char *where) {
  ALONE;
  must_be_live(to, where), must_be_live(from, where);
  if (!is_open(alive(stream, where)->capture)) memmove((void *)to, (void *)from, bytes);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, uint64_t from, size_t bytes) { return copy(to, from, bytes, NULL, "cuMemcpyHtoD"); }
int cuMemcpyDtoH_v2(uint64_t to, uint64_t from, size_t bytes) { return copy(to, from, bytes, NULL, "cuMemcpyDtoH"); }
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) { return copy(to, from, bytes, NULL, "cuMemcpyDtoD"); }
int cuMemcpyHtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream) { return copy(to, from, bytes, stream, "cuMemcpyHtoDAsync"); }
int cuMemcpyDtoHAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream) { return copy(to, from, bytes, stream, "cuMemcpyDtoHAsync"); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream) { return copy(to, from, bytes, stream, "cuMemcpyDtoDAsync"); }

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, void *a, void *b, void *c, void *d, int e, int f, int g, int h) {
  memset(map, 0, 128);
  *(void **)map = address;
  return SUCCESS;
}

/* ---- the device and its context */

static char context;
static __thread void *contexts[64]; /* a thread's, the current one last */
static __thread int depth;

int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int number) { *device = number; return SUCCESS; }
int cuDeviceGetName(char *name, int bytes, int device) { snprintf(name, bytes, "NVIDIA H100 80GB HBM3"); return SUCCESS; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 7, 16); return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **found, int device) { *found = &context; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *most) { *least = 0, *most = -5; return SUCCESS; }
int cuCtxGetCurrent(void **found) { *found = depth ? contexts[depth - 1] : NULL; return SUCCESS; }
int cuCtxGetDevice(int *device) { *device = 0; return depth ? SUCCESS : INVALID_CONTEXT; }

int cuCtxPushCurrent_v2(void *one) {
  if (depth == 64) fault("too many contexts", "cuCtxPushCurrent", depth);
  contexts[depth++] = one;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(void **found) {
  if (!depth) return INVALID_CONTEXT;
  void *one = contexts[--depth];
  if (found) *found = one;
  return SUCCESS;
}

int cuCtxSetCurrent(void *one) {
  if (depth) depth--;
  if (one) contexts[depth++] = one;
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int which, int device) {
  static const int values[][2] = {
      {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, /* threads of a block, blocks of a grid */
      {8, 49152}, {10, 32}, {12, 65536}, {13, 1980000}, {16, 132}, /* shared bytes, warp, registers, clock, multiprocessors */
      {39, 2048}, {41, 1}, {75, 9}, {76, 0}, {81, 233472}, {82, 65536}, {97, 232448}, /* compute capability 9.0, shared bytes */
  };
  *value = 0;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (values[i][0] == which) *value = values[i][1];
  return SUCCESS;
}

int cuGetErrorName(int error, const char **name) {
  static __thread char text[32];
  snprintf(text, sizeof text, "CUDA error %d", error);
  *name = text;
  return SUCCESS;
}

int cuGetErrorString(int error, const char **name) { return cuGetErrorName(error, name); }

/* ---- where functions are found */

static int not_supported(void) { return NOT_SUPPORTED; }

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  static const char *ends[] = {"_v2", ""};
  char whole[128];
  Dl_info self;
  dladdr((void *)cuInit, &self);
  void *library = dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_NOW);
  *found = NULL;
  for (size_t i = 0; i < 2 && !*found; i++) {
    snprintf(whole, sizeof whole, "%s%s", name, ends[i]);
    *found = dlsym(library, whole);
  }
  if (!*found) *found = (void *)not_supported;
  if (status) *status = SUCCESS;
  return SUCCESS;
}

__attribute__((destructor)) static void tell(void) {
  dprintf(2, "fake GPU: launches %ld graphs %ld replays %ld broken %ld allocated %ld freed %ld\n", counts.launches, counts.graphs,
          counts.replays, counts.broken, counts.allocated, counts.freed);
}
