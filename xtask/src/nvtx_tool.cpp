// A profiler as NVIDIA's NVTX headers describe one to their own programs: it prints what it hears. `cargo xtask cuda-check`
// compiles it and lets it attach to ours.
#include <cstdio>

#include "nvtx3/nvToolsExt.h"

static thread_local int level = 0;

static int push(const char* message) {
  std::printf("push %s\n", message);
  return level++;
}

static int pop() {
  std::puts("pop");
  return --level;
}

static void name_thread(uint32_t, const char* name) { std::printf("thread %s\n", name); }

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  auto versions = static_cast<const NvtxExportTableVersionInfo*>(get(NVTX_ETID_VERSIONINFO));
  if (!versions || versions->struct_size < sizeof *versions || versions->version != NVTX_VERSION) return 0;
  versions->SetInjectionNvtxVersion(NVTX_VERSION);
  auto callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  if (!callbacks || callbacks->struct_size < sizeof *callbacks) return 0;
  const struct {
    NvtxCallbackModule module;
    unsigned slots;
  } modules[] = {{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_SIZE},     {NVTX_CB_MODULE_CUDA, NVTX_CBID_CUDA_SIZE},
                 {NVTX_CB_MODULE_OPENCL, NVTX_CBID_OPENCL_SIZE}, {NVTX_CB_MODULE_CUDART, NVTX_CBID_CUDART_SIZE},
                 {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_SIZE},   {NVTX_CB_MODULE_SYNC, NVTX_CBID_SYNC_SIZE}};
  NvtxFunctionTable table = nullptr;
  unsigned slots = 0;
  for (auto& m : modules)
    if (!callbacks->GetModuleFunctionTable(m.module, &table, &slots) || slots < m.slots) return 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &slots)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  *table[NVTX_CBID_CORE_NameOsThreadA] = reinterpret_cast<NvtxFunctionPointer>(name_thread);
  return 1;
}
