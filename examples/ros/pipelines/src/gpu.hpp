/**
 * @file
 * The few GPU functions that a stage needs: kernels, a stream for them, and memory for a table. libcuda is found at run time, so the package
 * builds and runs on machines without it.
 *
 *     auto gpu = Gpu::of(node);                          // nullptr if the pools of this host are in host memory
 *     gpu->launch(gpu->kernel("sobel"), width, height, from, to);
 *
 * The stream belongs to the primary context, as RGAPS requires for ordering messages on it.
 */

#ifndef RGAPS_EXAMPLES__GPU_HPP_
#define RGAPS_EXAMPLES__GPU_HPP_

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "rgaps_ros/rgaps_ros.hpp"

namespace rgaps_examples {

/// The driver functions used here, with their types in cuda.h.
class Cuda {
 public:
  using Handle = void *;  // CUcontext, CUstream, CUmodule, CUfunction
  using Pointer = std::uint64_t;

  int (*device_get)(int *, int) = find("cuDeviceGet");
  int (*context_retain)(Handle *, int) = find("cuDevicePrimaryCtxRetain");
  int (*context_release)(int) = find("cuDevicePrimaryCtxRelease_v2");
  int (*context_push)(Handle) = find("cuCtxPushCurrent_v2");
  int (*context_pop)(Handle *) = find("cuCtxPopCurrent_v2");
  int (*stream_create)(Handle *, unsigned) = find("cuStreamCreate");
  int (*stream_synchronize)(Handle) = find("cuStreamSynchronize");
  int (*stream_destroy)(Handle) = find("cuStreamDestroy_v2");
  int (*module_load)(Handle *, const void *) = find("cuModuleLoadData");
  int (*module_unload)(Handle) = find("cuModuleUnload");
  int (*module_function)(Handle *, Handle, const char *) = find("cuModuleGetFunction");
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **) = find("cuLaunchKernel");
  int (*memory_allocate)(Pointer *, std::size_t) = find("cuMemAlloc_v2");
  int (*memory_free)(Pointer) = find("cuMemFree_v2");
  int (*memory_write)(Pointer, const void *, std::size_t) = find("cuMemcpyHtoD_v2");

  /// Loaded once in a process; throws if there is no driver.
  static const Cuda &instance() {
    static const Cuda cuda;
    return cuda;
  }

  /// Throws the driver's error if a call failed.
  void check(int status, const char *what) const {
    if (status == 0) return;
    const char *name = nullptr, *text = nullptr;
    if (error_name_(status, &name) != 0 || !name) name = "an unknown error";
    if (error_text_(status, &text) != 0 || !text) text = "";
    throw std::runtime_error(std::string(what) + ": " + name + " (" + std::to_string(status) + ") " + text);
  }

 private:
  /// A function of the library, converted to the type that it is assigned to.
  struct Symbol {
    void *address;
    template <class Function>
    operator Function *() const { return reinterpret_cast<Function *>(address); }
  };

  Cuda() {
    int (*init)(unsigned) = find("cuInit");
    check(init(0), "cuInit");
  }

  static Symbol find(const char *name) {
    static void *const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(std::string("libcuda.so.1 cannot be loaded: ") + ::dlerror());
    void *const address = ::dlsym(library, name);
    if (!address) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name + "; the driver is too old");
    return {address};
  }

  int (*error_name_)(int, const char **) = find("cuGetErrorName");
  int (*error_text_)(int, const char **) = find("cuGetErrorString");
};

/// The device of a stage's node, and a stream on it. It must outlive the stage's publishers and subscriptions, which use the stream.
class Gpu {
 public:
  /// The GPU of a node (parameter rgaps.device, which its publishers use too); nullptr if it uses none.
  static std::shared_ptr<Gpu> of(rclcpp::Node &node) {
    rcl_interfaces::msg::ParameterDescriptor descriptor;
    descriptor.read_only = true;
    descriptor.description = "GPU that this node works on, such as cuda:0; empty uses the GPU of the host's pools, if any.";
    const auto name = node.declare_parameter("rgaps.device", "", descriptor);
    const auto domain = static_cast<std::uint32_t>(node.get_node_base_interface()->get_context()->get_domain_id());
    auto core = rgaps_ros::Process::instance().node(domain, name).value();
    const auto device = core->device().value();
    constexpr int cuda_device = 2;  // kDLCUDA
    if (device.device_type != cuda_device) return nullptr;
    return std::shared_ptr<Gpu>(new Gpu(std::move(core), device.device_id));
  }

  ~Gpu() {
    try {
      drop_tables();
      const Current current(*this);
      cuda_.module_unload(module_);
      cuda_.stream_destroy(stream_);
    } catch (const std::exception &) {
      // If the device failed, or the driver ends with the process, the resources are gone already.
    }
  }
  Gpu(const Gpu &) = delete;
  Gpu &operator=(const Gpu &) = delete;

  /// The stream for a subscription's options and for publish().
  rgaps::Stream stream() const { return stream_; }

  /// A kernel of kernels.cu.
  Cuda::Handle kernel(const char *name) const {
    const Current current(*this);
    Cuda::Handle function = nullptr;
    cuda_.check(cuda_.module_function(&function, module_, name), name);
    return function;
  }

  /// Launches a kernel with one thread for each pixel, behind the work enqueued on the stream so far. Does not wait.
  template <class... Arguments>
  void launch(Cuda::Handle kernel, int width, int height, Arguments... arguments) const {
    const Current current(*this);
    void *pointers[] = {&arguments...};
    const unsigned columns = 32, rows = 8;
    const auto blocks = [](int pixels, unsigned threads) { return (static_cast<unsigned>(pixels) + threads - 1) / threads; };
    cuda_.check(cuda_.launch(kernel, blocks(width, columns), blocks(height, rows), 1, columns, rows, 1, 0, stream_, pointers, nullptr),
                "cuLaunchKernel");
  }

  /// Copies a table to device memory, where it stays until drop_tables.
  Cuda::Pointer put(const void *data, std::size_t bytes) {
    const Current current(*this);
    Cuda::Pointer table = 0;
    cuda_.check(cuda_.memory_allocate(&table, bytes), "cuMemAlloc");
    tables_.push_back(table);
    cuda_.check(cuda_.memory_write(table, data, bytes), "cuMemcpyHtoD");
    return table;
  }

  /// Waits for the stream's work, then frees all tables.
  void drop_tables() {
    const Current current(*this);
    cuda_.stream_synchronize(stream_);
    for (const auto table : tables_) cuda_.memory_free(table);
    tables_.clear();
  }

 private:
  /// The primary context of a device, which other code in the process shares.
  struct Context {
    const Cuda &cuda;
    int device = 0;
    Cuda::Handle handle = nullptr;

    Context(const Cuda &cuda_, int ordinal) : cuda(cuda_) {
      cuda.check(cuda.device_get(&device, ordinal), "cuDeviceGet");
      cuda.check(cuda.context_retain(&handle, device), "cuDevicePrimaryCtxRetain");
    }
    ~Context() { cuda.context_release(device); }
  };

  /// Makes the context current on this thread while this object lives.
  struct Current {
    const Cuda &cuda;
    explicit Current(const Gpu &gpu) : cuda(gpu.cuda_) { cuda.check(cuda.context_push(gpu.context_.handle), "cuCtxPushCurrent"); }
    ~Current() {
      Cuda::Handle popped = nullptr;
      cuda.context_pop(&popped);
    }
    Current(const Current &) = delete;
  };

  Gpu(std::shared_ptr<rgaps::Node> node, int ordinal) : node_(std::move(node)), cuda_(Cuda::instance()), context_(cuda_, ordinal) {
    const Current current(*this);
    constexpr unsigned non_blocking = 1;  // CU_STREAM_NON_BLOCKING
    cuda_.check(cuda_.stream_create(&stream_, non_blocking), "cuStreamCreate");
    cuda_.check(cuda_.module_load(&module_, kernels_ptx), "cuModuleLoadData of kernels.ptx");
  }

  std::shared_ptr<rgaps::Node> node_;
  const Cuda &cuda_;
  Context context_;
  Cuda::Handle stream_ = nullptr, module_ = nullptr;
  std::vector<Cuda::Pointer> tables_;
};

}  // namespace rgaps_examples

#endif  // RGAPS_EXAMPLES__GPU_HPP_
