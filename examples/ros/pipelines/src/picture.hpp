/**
 * @file
 * Converts RGAPS images to the types of kernels/pixels.hpp.
 */

#ifndef RGAPS_EXAMPLES__PICTURE_HPP_
#define RGAPS_EXAMPLES__PICTURE_HPP_

#include <stdexcept>
#include <string>

#include "../kernels/pixels.hpp"
#include "rgaps_ros/rgaps_ros.hpp"

namespace rgaps_examples {

/// Throws for encodings that the stages do not support.
inline int encoding_of(const std::string &name) {
  if (name == "mono8") return MONO8;
  if (name == "rgb8") return RGB8;
  if (name == "bgr8") return BGR8;
  throw std::invalid_argument("the encoding is " + name + "; it must be mono8, rgb8 or bgr8");
}

/// An image's pixels, at a CPU or GPU address.
inline Source source_of(const rgaps::Image &meta, const void *pixels) {
  if (!pixels) throw std::runtime_error("the pixels of a picture are not available");
  return {static_cast<const unsigned char *>(pixels), static_cast<int>(meta.width()), static_cast<int>(meta.height()),
          static_cast<int>(meta.step()), encoding_of(std::string(meta.encoding()))};
}

/// The pixels of a loan.
inline Target target_of(const rgaps::Image &meta, void *pixels) {
  return {static_cast<unsigned char *>(pixels), static_cast<int>(meta.width()), static_cast<int>(meta.height()),
          static_cast<int>(meta.step()), encoding_of(std::string(meta.encoding()))};
}

/// Metadata for an image made from another one: with the same stamp and coordinate frame.
inline rgaps::Image made_of(const rgaps::Image &from, std::uint32_t width, std::uint32_t height, const std::string &encoding) {
  auto meta = rgaps::Image::create(width, height, encoding).value();
  meta.set_header(from.stamp(), std::string(from.frame_id())).value();
  return meta;
}

}  // namespace rgaps_examples

#endif  // RGAPS_EXAMPLES__PICTURE_HPP_
