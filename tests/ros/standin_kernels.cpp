// Kernels of examples/ros/pipelines for the stand-in for libcuda, which has none: the stand-in's functions, and the few others that the stages call.
// A launch runs the kernel's work on the CPU, with the functions from which kernels.cu is made, after the stream's earlier work. It says nothing
// about PTX or speed; it shows that a stage enqueues the right work in the right order.
//
//   ln -s .../librgaps_standin_cuda.so FOLDER/libcuda.so
//   g++ -std=c++17 -shared -fPIC standin_kernels.cpp -o FOLDER/libcuda.so.1 FOLDER/libcuda.so '-Wl,-rpath,$ORIGIN'

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../examples/ros/pipelines/kernels/pixels.hpp"

namespace ex = rgaps_examples;

extern "C" {
int cuStreamSynchronize(void *stream);
int cuMemcpyDtoH_v2(void *to, std::uint64_t from, std::size_t bytes);
}

namespace {

constexpr int invalid_value = 1, not_found = 500;
char module_, rectify_, sobel_;

std::mutex mutex_;
std::vector<std::unique_ptr<unsigned char[]>> tables_;

bool is_table(std::uint64_t pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(tables_.begin(), tables_.end(), [pointer](const auto &table) { return reinterpret_cast<std::uint64_t>(table.get()) == pointer; });
}

/// The stand-in's cuMemcpyHtoD.
int write_device(std::uint64_t to, const void *from, std::size_t bytes) {
  static const auto call = reinterpret_cast<int (*)(std::uint64_t, const void *, std::size_t)>(::dlsym(RTLD_NEXT, "cuMemcpyHtoD_v2"));
  return call ? call(to, from, bytes) : not_found;
}

/// Runs a kernel's work on copies of its input and output.
template <class Pixel>
int run(ex::Source from, ex::Target to, Pixel pixel) {
  std::vector<unsigned char> read(static_cast<std::size_t>(from.height) * from.step), written(static_cast<std::size_t>(to.height) * to.step);
  if (int failed = cuMemcpyDtoH_v2(read.data(), reinterpret_cast<std::uint64_t>(from.data), read.size())) return failed;
  const auto address = reinterpret_cast<std::uint64_t>(to.data);
  from.data = read.data();
  to.data = written.data();
  for (int y = 0; y < to.height; ++y) {
    for (int x = 0; x < to.width; ++x) pixel(from, to, x, y);
  }
  return write_device(address, written.data(), written.size());
}

}  // namespace

extern "C" {

int cuModuleLoadData(void **module, const void *ptx) {
  if (!std::strstr(static_cast<const char *>(ptx), ".visible .entry")) return invalid_value;
  *module = &module_;
  return 0;
}
int cuModuleUnload(void *module) { return module == &module_ ? 0 : invalid_value; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (module != &module_) return invalid_value;
  *function = std::string(name) == "rectify" ? &rectify_ : std::string(name) == "sobel" ? &sobel_ : nullptr;
  return *function ? 0 : not_found;
}

// Tables are in host memory that only launches access.
int cuMemAlloc_v2(std::uint64_t *pointer, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.push_back(std::make_unique<unsigned char[]>(bytes));
  *pointer = reinterpret_cast<std::uint64_t>(tables_.back().get());
  return 0;
}
int cuMemFree_v2(std::uint64_t pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [pointer](const auto &table) { return reinterpret_cast<std::uint64_t>(table.get()) == pointer; };
  const auto found = std::find_if(tables_.begin(), tables_.end(), is_it);
  if (found == tables_.end()) return invalid_value;
  tables_.erase(found);
  return 0;
}
int cuMemcpyHtoD_v2(std::uint64_t to, const void *from, std::size_t bytes) {
  if (!is_table(to)) return write_device(to, from, bytes);
  std::memcpy(reinterpret_cast<void *>(to), from, bytes);
  return 0;
}

int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *stream, void **arguments, void **) {
  if (int failed = cuStreamSynchronize(stream)) return failed;
  const auto &from = *static_cast<const ex::Source *>(arguments[0]);
  if (function == &sobel_) return run(from, *static_cast<const ex::Target *>(arguments[1]), ex::sobel_pixel);
  if (function != &rectify_) return invalid_value;
  const auto *map = *static_cast<const ex::Place *const *>(arguments[1]);
  const auto &to = *static_cast<const ex::Target *>(arguments[2]);
  return run(from, to, [map](const ex::Source &source, const ex::Target &target, int x, int y) {
    ex::rectify_pixel(source, map[static_cast<std::size_t>(y) * target.width + x], target, x, y);
  });
}
}
