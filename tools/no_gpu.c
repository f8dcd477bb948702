/* A CUDA driver and runtime with one GPU that does nothing, laid before the real ones by tools/inductor_programs.py: PyTorch's autograd engine and Inductor
   ask for a device even where all tensors are fake. They have no data, so that no kernel ever runs; the few things that are still asked of CUDA (which
   device, which stream, is a graph being recorded, room for a constant) are done here. It is built as libcuda.so.1, the name under which PyTorch asks for the driver, with the
   headers of PyTorch's own CUDA, whose layout of cudaDeviceProp it has to share. Whatever really computes does not work with it. */
#include <driver_types.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int number) { return *device = number, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; }
int cuCtxGetCurrent(void** context) { return *context = (void*)1, 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuGetErrorString(int error, const char** text) { return *text = "there is no GPU", 0; }

int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0, 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
int cudaStreamIsCapturing(void* stream, int* status) { return *status = 0, 0; }
int cudaStreamSynchronize(void* stream) { return 0; }
int cudaStreamQuery(void* stream) { return 0; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) { return 0; }
int cudaEventCreateWithFlags(void** event, unsigned flags) { return *event = (void*)1, 0; }
int cudaEventRecord(void* event, void* stream) { return 0; }
int cudaEventQuery(void* event) { return 0; }
int cudaEventDestroy(void* event) { return 0; }

/* Constants that a trace makes are no fake tensors and their values are looked at: the GPU's memory is the host's. */
int cudaMalloc(void** block, size_t bytes) { return (*block = calloc(1, bytes)) ? 0 : 2; }
int cudaFree(void* block) { return free(block), 0; }
int cudaHostAlloc(void** block, size_t bytes, unsigned flags) { return cudaMalloc(block, bytes); }
int cudaFreeHost(void* block) { return cudaFree(block); }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) { return memcpy(to, from, bytes), 0; }
int cudaMemsetAsync(void* block, int value, size_t bytes, void* stream) { return memset(block, value, bytes), 0; }

int cudaGetDeviceProperties(struct cudaDeviceProp* got, int device) {
  memset(got, 0, sizeof *got);
  strcpy(got->name, "NVIDIA H200");
  got->major = 9;
  got->multiProcessorCount = 132;
  got->warpSize = 32;
  got->totalGlobalMem = 150ul << 30;
  got->maxThreadsPerBlock = 1024;
  got->maxThreadsPerMultiProcessor = 2048;
  got->l2CacheSize = 60 << 20;
  return 0;
}
