// A stage of an image pipeline: finds edges (Sobel) in images that it reads in place, and writes them into loans, which subscribers read in place.
//
//   g++ -std=c++17 edges.cpp $(pkg-config --cflags --libs rgaps) -o edges
//   edges COUNT     takes COUNT pictures (mono8 or rgb8) from "camera/front", publishes their edges (mono8) on "camera/edges"

#include <rgaps.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

// The brightness of a pixel; of a colour pixel, its green channel.
class Brightness {
 public:
  Brightness(const rgaps::Image &meta, rgaps::Span<const std::uint8_t> pixels)
      : pixels_(pixels), step_(meta.step()), channels_(meta.encoding() == "rgb8" ? 3 : 1) {
    if (channels_ == 1 && meta.encoding() != "mono8") throw std::runtime_error("only mono8 and rgb8 pictures");
  }
  int operator()(std::uint32_t x, std::uint32_t y) const { return pixels_[y * step_ + x * channels_ + channels_ / 2]; }

 private:
  rgaps::Span<const std::uint8_t> pixels_;
  std::size_t step_, channels_;
};

void sobel(const Brightness &at, std::uint32_t width, std::uint32_t height, rgaps::Span<std::uint8_t> edges) {
  std::fill(edges.begin(), edges.end(), std::uint8_t{0});
  for (std::uint32_t y = 1; y + 1 < height; ++y) {
    for (std::uint32_t x = 1; x + 1 < width; ++x) {
      const int across = at(x + 1, y - 1) + 2 * at(x + 1, y) + at(x + 1, y + 1) - at(x - 1, y - 1) -
                         2 * at(x - 1, y) - at(x - 1, y + 1);
      const int down = at(x - 1, y + 1) + 2 * at(x, y + 1) + at(x + 1, y + 1) - at(x - 1, y - 1) - 2 * at(x, y - 1) -
                       at(x + 1, y - 1);
      edges[std::size_t{y} * width + x] = static_cast<std::uint8_t>(std::min(255, std::abs(across) + std::abs(down)));
    }
  }
}

void run(int count) {
  auto node = rgaps::Node::create("edges").value();
  auto publisher = node.publisher<rgaps::Image>("camera/edges").value();
  auto subscriber = node.subscriber<rgaps::Image>("camera/front").value();
  std::cout << "ready" << std::endl;
  for (int n = 0; n < count; ++n) {
    auto picture = subscriber.wait(std::chrono::seconds(10)).value();
    if (!picture) throw std::runtime_error("no picture within ten seconds");
    const auto meta = picture->meta().value();
    auto described = rgaps::Image::create(meta.width(), meta.height(), "mono8").value();
    described.set_header(meta.stamp(), std::string(meta.frame_id())).value();
    auto loan = publisher.loan(described).value();
    auto edges = loan.as<std::uint8_t>().value();
    sobel(Brightness(meta, picture->as<std::uint8_t>().value()), meta.width(), meta.height(), edges);
    const auto strong = std::count_if(edges.begin(), edges.end(), [](std::uint8_t edge) { return edge > 128; });
    std::move(loan).publish().value();
    std::cout << meta.width() << " x " << meta.height() << ": " << strong << " pixels on edges" << std::endl;
  }  // the picture is released here
}

}  // namespace

int main(int argc, char **argv) try {
  run(argc == 2 ? std::stoi(argv[1]) : 10);
  return 0;
} catch (const std::exception &error) {
  std::cerr << "edges: " << error.what() << "\n";
  return 1;
}
