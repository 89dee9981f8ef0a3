// The kernels of this package, one thread for each pixel. kernels.ptx is compiled from them with clang 14 or later, without CUDA's SDK, and
// committed:
//
//   clang++ -x cuda --cuda-device-only --cuda-gpu-arch=sm_52 -nocudainc -nocudalib -Xclang -target-feature -Xclang +ptx60 \
//       -std=c++17 -O2 -S kernels.cu -o -
//
// below a line that says so. tests/ros/pipelines compares the two.
// Code for compute capability 5.2 runs on it and all later ones: the driver compiles it for the installed GPU.

#define RGAPS_EXAMPLES_FUNCTION static __attribute__((device)) inline
#include "pixels.hpp"

using namespace rgaps_examples;

#define KERNEL extern "C" __attribute__((global)) void

/// The pixel of this thread.
static __attribute__((device)) inline int column() {
  return __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}
static __attribute__((device)) inline int row() {
  return __nvvm_read_ptx_sreg_ctaid_y() * __nvvm_read_ptx_sreg_ntid_y() + __nvvm_read_ptx_sreg_tid_y();
}

/// Rectifies and resizes; `map` has an entry for each pixel of `to`.
KERNEL rectify(Source from, const Place *map, Target to) {
  const int x = column(), y = row();
  if (x < to.width && y < to.height) rectify_pixel(from, map[(long long)y * to.width + x], to, x, y);
}

/// Edges of a mono8 image.
KERNEL sobel(Source from, Target to) {
  const int x = column(), y = row();
  if (x < to.width && y < to.height) sobel_pixel(from, to, x, y);
}
