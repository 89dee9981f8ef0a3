/**
 * @file
 * The operations on a pixel, for the CPU and for the kernels. They use integers only, so that both give the same bytes.
 */

#ifndef RGAPS_EXAMPLES__PIXELS_HPP_
#define RGAPS_EXAMPLES__PIXELS_HPP_

// kernels.cu sets for which side the functions are compiled.
#ifndef RGAPS_EXAMPLES_FUNCTION
#define RGAPS_EXAMPLES_FUNCTION inline
#endif

namespace rgaps_examples {

/// Encodings that the stages support: mono8, rgb8 and bgr8 of sensor_msgs/image_encodings.
enum Encoding : int { MONO8, RGB8, BGR8 };

/// The source position of an output pixel, in 1/256 pixels, within the source image.
struct Place {
  int x, y;
};

/// Pixels of an input.
struct Source {
  const unsigned char *data;
  int width, height, step, encoding;
};

/// Pixels of an output.
struct Target {
  unsigned char *data;
  int width, height, step, encoding;
};

RGAPS_EXAMPLES_FUNCTION int channels(int encoding) { return encoding == MONO8 ? 1 : 3; }

/// Brightness by BT.601, in 1/256.
RGAPS_EXAMPLES_FUNCTION int luma(int red, int green, int blue) { return (77 * red + 150 * green + 29 * blue + 128) >> 8; }

/// A channel interpolated bilinearly between four pixels.
RGAPS_EXAMPLES_FUNCTION int bilinear(const Source &from, Place at, int channel) {
  const int count = channels(from.encoding), column = at.x >> 8, row = at.y >> 8, right = at.x & 255, down = at.y & 255;
  const int next_column = column + 1 < from.width ? column + 1 : column, next_row = row + 1 < from.height ? row + 1 : row;
  const unsigned char *above = from.data + (long long)row * from.step + channel;
  const unsigned char *below = from.data + (long long)next_row * from.step + channel;
  const int upper = above[column * count] * (256 - right) + above[next_column * count] * right;
  const int lower = below[column * count] * (256 - right) + below[next_column * count] * right;
  return (upper * (256 - down) + lower * down + 32768) >> 16;
}

/// Pixel (x, y) of a rectified image, mono8 or rgb8, from its position in the source.
RGAPS_EXAMPLES_FUNCTION void rectify_pixel(const Source &from, Place at, const Target &to, int x, int y) {
  unsigned char *pixel = to.data + (long long)y * to.step + x * channels(to.encoding);
  if (from.encoding == MONO8) {
    const int value = bilinear(from, at, 0);
    for (int channel = 0; channel < channels(to.encoding); ++channel) pixel[channel] = (unsigned char)value;
    return;
  }
  const int red = bilinear(from, at, from.encoding == RGB8 ? 0 : 2), green = bilinear(from, at, 1);
  const int blue = bilinear(from, at, from.encoding == RGB8 ? 2 : 0);
  if (to.encoding == MONO8) {
    pixel[0] = (unsigned char)luma(red, green, blue);
  } else {
    pixel[0] = (unsigned char)red;
    pixel[1] = (unsigned char)green;
    pixel[2] = (unsigned char)blue;
  }
}

/// Pixel (x, y) of the edges of a mono8 image: Sobel's |gx| + |gy|, at most 255. Outside the image, its border pixels repeat.
RGAPS_EXAMPLES_FUNCTION void sobel_pixel(const Source &from, const Target &to, int x, int y) {
  const int left = x > 0 ? x - 1 : 0, right = x + 1 < from.width ? x + 1 : x;
  const unsigned char *above = from.data + (long long)(y > 0 ? y - 1 : 0) * from.step;
  const unsigned char *here = from.data + (long long)y * from.step;
  const unsigned char *below = from.data + (long long)(y + 1 < from.height ? y + 1 : y) * from.step;
  const int gx = above[right] + 2 * here[right] + below[right] - above[left] - 2 * here[left] - below[left];
  const int gy = below[left] + 2 * below[x] + below[right] - above[left] - 2 * above[x] - above[right];
  const int strength = (gx < 0 ? -gx : gx) + (gy < 0 ? -gy : gy);
  to.data[(long long)y * to.step + x] = (unsigned char)(strength < 255 ? strength : 255);
}

}  // namespace rgaps_examples

#endif  // RGAPS_EXAMPLES__PIXELS_HPP_
