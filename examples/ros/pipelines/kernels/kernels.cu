// The kernels of this package, a thread a pixel. kernels.ptx is made of them with clang 14 or later, without CUDA's SDK, and committed:
//
//   clang++ -x cuda --cuda-device-only --cuda-gpu-arch=sm_52 -nocudainc -nocudalib -Xclang -target-feature -Xclang +ptx60 \
//       -std=c++17 -O2 -S kernels.cu -o -
//
// behind a line that says so. tests/ros/pipelines compares them.
// Code for compute capability 5.2 runs on that and all later ones: the driver compiles it for the GPU at hand.

#define RGAPS_EXAMPLES_FUNCTION static __attribute__((device)) inline
#include "pixels.hpp"

using namespace rgaps_examples;

#define KERNEL extern "C" __attribute__((global)) void

/// What this thread has of the grid.
static __attribute__((device)) inline int column() {
  return __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}
static __attribute__((device)) inline int row() {
  return __nvvm_read_ptx_sreg_ctaid_y() * __nvvm_read_ptx_sreg_ntid_y() + __nvvm_read_ptx_sreg_tid_y();
}

/// Rectifies and resizes; `map` has a place for each pixel of `to`.
KERNEL rectify(Source from, const Place *map, Target to) {
  const int x = column(), y = row();
  if (x < to.width && y < to.height) rectify_pixel(from, map[(long long)y * to.width + x], to, x, y);
}

/// Edges of a mono8 picture.
KERNEL sobel(Source from, Target to) {
  const int x = column(), y = row();
  if (x < to.width && y < to.height) sobel_pixel(from, to, x, y);
}
