// What the stages of the pipeline compute, on the CPU. No ROS and no RGAPS: pixels in, pixels out.

#ifndef RGAPS_EXAMPLES_CPP__STAGES_HPP_
#define RGAPS_EXAMPLES_CPP__STAGES_HPP_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace rgaps_examples {

/// Width and height, in pixels.
struct Size {
  std::uint32_t width, height;
};

/// The rectifier halves pictures.
inline Size half(Size size) { return {size.width / 2, size.height / 2}; }

/// Picture `number` of the camera, rgb8: a bright disc that moves over a shaded ground.
inline void draw(std::uint64_t number, Size size, std::uint8_t *rgb) {
  const auto steps = static_cast<double>(number % 120) / 120.0 * 6.283185307179586;
  const double across = size.width * (0.5 + 0.3 * std::cos(steps)), down = size.height * (0.5 + 0.3 * std::sin(steps));
  const double radius = size.height * 0.15;
  for (std::uint32_t y = 0; y < size.height; ++y) {
    for (std::uint32_t x = 0; x < size.width; ++x, rgb += 3) {
      const bool in_disc = (x - across) * (x - across) + (y - down) * (y - down) < radius * radius;
      rgb[0] = static_cast<std::uint8_t>(in_disc ? 250 : x * 100 / size.width);
      rgb[1] = static_cast<std::uint8_t>(in_disc ? 240 : y * 100 / size.height);
      rgb[2] = static_cast<std::uint8_t>(in_disc ? 200 : 40);
    }
  }
}

/// Takes the radial distortion of a lens out of an rgb8 picture and halves it; what lies outside is black.
inline void rectify(const std::uint8_t *from, std::size_t step, Size size, std::uint8_t *to) {
  constexpr double distortion = 0.12;
  const Size small = half(size);
  for (std::uint32_t y = 0; y < small.height; ++y) {
    for (std::uint32_t x = 0; x < small.width; ++x, to += 3) {
      // From the middle, in units of half the picture's height.
      const double u = (2.0 * x + 1 - size.width / 2) / (size.height / 2), v = (2.0 * y + 1 - size.height / 2) / (size.height / 2);
      const double stretch = 1 - distortion * (u * u + v * v) / 2;
      const auto column = static_cast<std::int64_t>(std::floor((u * stretch * (size.height / 2) + size.width) / 2));
      const auto row = static_cast<std::int64_t>(std::floor((v * stretch * (size.height / 2) + size.height) / 2));
      const bool is_inside = column >= 0 && row >= 0 && column < size.width && row < size.height;
      for (int channel = 0; channel < 3; ++channel) {
        to[channel] = is_inside ? from[static_cast<std::size_t>(row) * step + static_cast<std::size_t>(column) * 3 + channel] : 0;
      }
    }
  }
}

/// Edges of the green of an rgb8 picture, mono8, by Sobel's operator.
inline void find_edges(const std::uint8_t *rgb, std::size_t step, Size size, std::uint8_t *edges) {
  std::fill_n(edges, std::size_t{size.width} * size.height, std::uint8_t{0});
  const auto at = [&](std::uint32_t x, std::uint32_t y) -> int { return rgb[y * step + x * 3 + 1]; };
  for (std::uint32_t y = 1; y + 1 < size.height; ++y) {
    for (std::uint32_t x = 1; x + 1 < size.width; ++x) {
      const int across = at(x + 1, y - 1) + 2 * at(x + 1, y) + at(x + 1, y + 1) - at(x - 1, y - 1) - 2 * at(x - 1, y) - at(x - 1, y + 1);
      const int down = at(x - 1, y + 1) + 2 * at(x, y + 1) + at(x + 1, y + 1) - at(x - 1, y - 1) - 2 * at(x, y - 1) - at(x + 1, y - 1);
      edges[std::size_t{y} * size.width + x] = static_cast<std::uint8_t>(std::min(255, std::abs(across) + std::abs(down)));
    }
  }
}

}  // namespace rgaps_examples

#endif  // RGAPS_EXAMPLES_CPP__STAGES_HPP_
