/**
 * @file
 * RGAPS for C++17: rgaps.h with owners, types and errors; no logic of its own.
 *
 *     auto node = rgaps::Node::create("camera").value();
 *     auto publisher = node.publisher<rgaps::Image>("camera/front").value();
 *     auto loan = publisher.loan(rgaps::Image::create(640, 480, "mono8").value()).value();
 *     for (auto &pixel : loan.as<std::uint8_t>().value()) pixel = 128;
 *     std::move(loan).publish().value();
 *
 * - **Errors**: every call that may fail returns a Result. With exceptions, call .value(), which throws rgaps::Error. Without, check the Result,
 *   as with std::expected. Nothing else throws, except std::bad_alloc.
 * - **Owners**: Node, Publisher, Subscriber, Loan and Sample are move-only and destroy what they own. After a move, a publication or a release,
 *   their calls return RGAPS_INVALID_HANDLE.
 * - **Streams**: a cudaStream_t or CUstream of the device's primary context; nullptr is CUDA's default stream. Ignored on the host backend.
 */

#ifndef RGAPS_HPP
#define RGAPS_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rgaps.h"

namespace rgaps {

/// A cudaStream_t or CUstream.
using Stream = void *;

/// Why a call failed.
struct Failure {
  rgaps_status_t status;
  std::string text;
};

/// A failure as an exception.
///
///     try {
///       node.publisher<rgaps::Image>("1camera").value();
///     } catch (const rgaps::Error &error) {
///       assert(error.status() == RGAPS_INVALID_ARGUMENT);  // error.what() says that a name does not begin with a digit
///     }
class Error : public std::runtime_error {
 public:
  explicit Error(const Failure &failure) : std::runtime_error(failure.text), status_(failure.status) {}
  /// The status.
  rgaps_status_t status() const noexcept { return status_; }

 private:
  rgaps_status_t status_;
};

namespace detail {

/// The last failure of this thread.
inline Failure failure() { return Failure{rgaps_error_status(), rgaps_error_text()}; }

[[noreturn]] inline void raise(const Failure &failure) {
#if defined(__cpp_exceptions)
  throw Error(failure);
#else
  std::fputs(("rgaps: " + failure.text + "\n").c_str(), stderr);
  std::abort();
#endif
}

}  // namespace detail

/// The value of a call, or its failure.
///
///     auto image = rgaps::Image::create(640, 480, "no such encoding");
///     if (!image) std::puts(image.error().text.c_str());
///     assert(!image && rgaps::Image::create(640, 480, "rgb8").value().step() == 1920);
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(Failure failure) : content_(std::in_place_index<1>, std::move(failure)) {}

  bool has_value() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// The value. Throws Error if the call failed (without exceptions, ends the program).
  T &value() & { return check(), *std::get_if<0>(&content_); }
  const T &value() const & { return check(), *std::get_if<0>(&content_); }
  T value() && { return check(), std::move(*std::get_if<0>(&content_)); }

  /// The value. The call must have succeeded.
  T &operator*() & { return *std::get_if<0>(&content_); }
  T operator*() && { return std::move(*std::get_if<0>(&content_)); }
  T *operator->() { return std::get_if<0>(&content_); }

  /// The failure. The call must have failed.
  const Failure &error() const { return *std::get_if<1>(&content_); }

 private:
  void check() const {
    if (!has_value()) detail::raise(error());
  }

  std::variant<T, Failure> content_;
};

/// The success of a call, or its failure.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : failure_(std::move(failure)) {}

  bool has_value() const noexcept { return !failure_; }
  explicit operator bool() const noexcept { return has_value(); }
  /// Throws Error if the call failed.
  void value() const {
    if (failure_) detail::raise(*failure_);
  }
  /// The failure. The call must have failed.
  const Failure &error() const { return *failure_; }

 private:
  std::optional<Failure> failure_;
};

/// A view of contiguous elements, like C++20's std::span, to which it converts.
///
///     auto loan = node.publisher<rgaps::Bytes>("raw").value().loan(rgaps::Bytes::create(8).value()).value();
///     rgaps::Span<std::uint32_t> numbers = loan.as<std::uint32_t>().value();
///     assert(numbers.size() == 2);
template <class T>
class Span {
 public:
  constexpr Span() noexcept = default;
  constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }
  constexpr T &operator[](std::size_t index) const { return data_[index]; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {

inline Result<void> done(rgaps_status_t status) {
  return status == RGAPS_OK ? Result<void>() : Result<void>(failure());
}

/// Makes a Result of a status and the value that the call wrote to `made`.
template <class T>
Result<T> made(rgaps_status_t status, T &&made) {
  if (status != RGAPS_OK) return failure();
  return Result<T>(std::forward<T>(made));
}

/// Memory as elements of T; a partial element at the end is left out.
template <class T, class Void>
Result<Span<T>> as(Void *data, std::uint64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
    return Failure{RGAPS_INVALID_ARGUMENT, "the payload is not aligned for this type"};
  }
  return Span<T>(static_cast<T *>(data), static_cast<std::size_t>(bytes / sizeof(T)));
}

inline std::string_view fixed(const char *text, std::size_t most) {
  const void *end = std::memchr(text, 0, most);
  return {text, end ? static_cast<std::size_t>(static_cast<const char *>(end) - text) : most};
}

}  // namespace detail

/// The common part of all kinds of metadata.
class Meta {
 public:
  /// The C struct, for the calls of rgaps.h.
  const rgaps_meta_t &c() const noexcept { return meta_; }
  rgaps_meta_t &c() noexcept { return meta_; }

  /// Sets stamp and coordinate frame.
  Result<void> set_header(std::chrono::nanoseconds since_1970, const std::string &frame_id) {
    return detail::done(
        rgaps_meta_set_header(&meta_, static_cast<std::uint64_t>(since_1970.count()), frame_id.c_str()));
  }
  /// Stamp, since 1970.
  std::chrono::nanoseconds stamp() const {
    return std::chrono::seconds(meta_.as.header.sec) + std::chrono::nanoseconds(meta_.as.header.nanosec);
  }
  /// Coordinate frame.
  std::string_view frame_id() const {
    return detail::fixed(meta_.as.header.frame_id, sizeof meta_.as.header.frame_id);
  }
  /// The application's own 32 bytes.
  Span<std::uint8_t> user() noexcept { return {meta_.as.header.user, sizeof meta_.as.header.user}; }
  /// Bytes of the payload that it describes; 0 if it is invalid.
  std::uint64_t payload_bytes() const { return rgaps_meta_payload_bytes(&meta_); }

 protected:
  rgaps_meta_t meta_{};
};

/// Raw bytes.
///
///     assert(rgaps::Bytes::create(1000).value().bytes() == 1000);
class Bytes : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_BYTES;
  /// Describes a payload of `bytes` bytes.
  static Result<Bytes> create(std::uint64_t bytes) {
    Bytes meta;
    const auto status = rgaps_meta_bytes(&meta.meta_, bytes);
    return detail::made(status, std::move(meta));
  }
  std::uint64_t bytes() const noexcept { return meta_.as.bytes.bytes; }
};

/// An image.
///
///     auto image = rgaps::Image::create(640, 480, "rgb8").value();
///     image.set_header(rgaps::now(), "camera_front").value();
///     assert(image.step() == 1920 && image.payload_bytes() == 921600 && image.frame_id() == "camera_front");
class Image : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_IMAGE;
  /// An image whose rows follow each other without gaps. `encoding` is a name of sensor_msgs/image_encodings.
  static Result<Image> create(std::uint32_t width, std::uint32_t height, const std::string &encoding) {
    Image meta;
    const auto status = rgaps_meta_image(&meta.meta_, width, height, encoding.c_str());
    return detail::made(status, std::move(meta));
  }
  std::uint32_t width() const noexcept { return meta_.as.image.width; }
  std::uint32_t height() const noexcept { return meta_.as.image.height; }
  /// Bytes from one row of the first plane to the next.
  std::uint32_t step() const noexcept { return meta_.as.image.step; }
  bool is_bigendian() const noexcept { return meta_.as.image.is_bigendian != 0; }
  /// Name of sensor_msgs/image_encodings.
  std::string_view encoding() const {
    const char *name = rgaps_encoding_name(meta_.as.image.encoding);
    return name ? name : "";
  }
};

/// A point cloud.
///
///     auto cloud = rgaps::PointCloud::create(1000, 1, 16).value();
///     cloud.add_field("x", 0, RGAPS_FLOAT32).value();
///     cloud.add_field("intensity", 12, RGAPS_FLOAT32).value();
///     assert(cloud.payload_bytes() == 16000 && cloud.field("intensity").value().offset == 12);
class PointCloud : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_POINT_CLOUD;
  /// A cloud of `width` x `height` points of `point_step` bytes, without fields.
  static Result<PointCloud> create(std::uint32_t width, std::uint32_t height, std::uint32_t point_step) {
    PointCloud meta;
    const auto status = rgaps_meta_point_cloud(&meta.meta_, width, height, point_step);
    return detail::made(status, std::move(meta));
  }
  /// Adds a field of one element; `datatype` is an rgaps_datatype_t, such as RGAPS_FLOAT32.
  Result<void> add_field(const std::string &name, std::uint32_t offset, std::uint32_t datatype) {
    return detail::done(rgaps_meta_add_field(&meta_, name.c_str(), offset, datatype));
  }
  /// The field of this name.
  Result<rgaps_point_field_t> field(const std::string &name) const {
    rgaps_point_field_t field{};
    const auto status = rgaps_meta_field(&meta_, name.c_str(), &field);
    return detail::made(status, std::move(field));
  }
  std::uint32_t width() const noexcept { return meta_.as.point_cloud.width; }
  std::uint32_t height() const noexcept { return meta_.as.point_cloud.height; }
  /// Bytes from point to point.
  std::uint32_t point_step() const noexcept { return meta_.as.point_cloud.point_step; }
  /// Bytes from row to row.
  std::uint32_t row_step() const noexcept { return meta_.as.point_cloud.row_step; }
  bool is_dense() const noexcept { return meta_.as.point_cloud.is_dense != 0; }
};

/// A tensor.
///
///     auto tensor = rgaps::Tensor::create(RGAPS_FLOAT, 32, {1, 3, 224, 224}).value();
///     assert(tensor.strides()[1] == 224 * 224);
class Tensor : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_TENSOR;
  /// A tensor in C order. `code` is an rgaps_type_code_t: RGAPS_FLOAT and 32 bits for float.
  static Result<Tensor> create(std::uint32_t code, std::uint32_t bits, const std::vector<std::int64_t> &shape) {
    Tensor meta;
    const auto status =
        rgaps_meta_tensor(&meta.meta_, code, bits, static_cast<std::uint32_t>(shape.size()), shape.data());
    return detail::made(status, std::move(meta));
  }
  Span<const std::int64_t> shape() const noexcept { return {meta_.as.tensor.shape, meta_.as.tensor.ndim}; }
  /// Elements (not bytes) from one to the next in each dimension.
  Span<const std::int64_t> strides() const noexcept { return {meta_.as.tensor.strides, meta_.as.tensor.ndim}; }
  std::uint32_t code() const noexcept { return meta_.as.tensor.code; }
  std::uint32_t bits() const noexcept { return meta_.as.tensor.bits; }
  std::uint64_t byte_offset() const noexcept { return meta_.as.tensor.byte_offset; }
};

/// A loaned block of a publisher's pool, to be filled. Destroying it without publishing gives the block back.
///
///     auto publisher = node.publisher<rgaps::Image>("camera/front").value();
///     auto loan = publisher.loan(rgaps::Image::create(640, 480, "mono8").value()).value();
///     for (auto &pixel : loan.as<std::uint8_t>().value()) pixel = 128;
///     const rgaps_message_handle_t handle = std::move(loan).publish().value();
///     assert(handle.sequence == 1);
template <class M>
class [[nodiscard]] Loan {
 public:
  /// The block for the CPU: in place if the CPU can map it, else host memory that publishing copies into the block.
  template <class T = std::byte>
  Result<Span<T>> as() {
    void *data = nullptr;
    std::uint64_t bytes = 0;
    if (rgaps_loan_data(loan_.get(), &data, &bytes) != RGAPS_OK) return detail::failure();
    return detail::as<T>(data, bytes);
  }
  /// The block's pointer on the device, for a kernel or a copy to fill it.
  Result<void *> device_pointer() const {
    void *pointer = nullptr;
    const auto status = rgaps_loan_device_pointer(loan_.get(), &pointer);
    return detail::made(status, std::move(pointer));
  }
  /// Replaces the metadata. The new one must describe the same number of bytes.
  Result<void> set_meta(const M &meta) { return detail::done(rgaps_loan_set_meta(loan_.get(), &meta.c())); }
  /// A DLPack tensor for an array library to fill; see rgaps_loan_dlpack.
  Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr) const {
    DLManagedTensorVersioned *tensor = nullptr;
    const auto status = rgaps_loan_dlpack(loan_.get(), field, &tensor);
    return detail::made(status, std::move(tensor));
  }
  /// Publishes the loan, in stream order. The loan ends even if the call fails.
  Result<rgaps_message_handle_t> publish(Stream stream = nullptr) && {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_loan_publish(loan_.release(), stream, &handle);
    return detail::made(status, std::move(handle));
  }

 private:
  template <class>
  friend class Publisher;
  struct End {
    void operator()(rgaps_loan_t *loan) const { rgaps_loan_discard(loan); }
  };
  explicit Loan(rgaps_loan_t *loan) : loan_(loan) {}
  std::unique_ptr<rgaps_loan_t, End> loan_;
};

/// A buffer of a pool. Fill it, freeze it, and publish it with publishers of the pool, as often as you like. Given back at its end.
class [[nodiscard]] Buffer {
 public:
  /// The memory for the CPU to fill: in place if the CPU can map it, else host memory that freezing copies into the block. An error once it is frozen.
  template <class T = std::byte>
  Result<Span<T>> as() {
    void *data = nullptr;
    std::uint64_t bytes = 0;
    if (rgaps_buffer_data(buffer_.get(), &data, &bytes) != RGAPS_OK) return detail::failure();
    return detail::as<T>(data, bytes);
  }
  /// The pointer on the device: for kernels to fill it, and to read it once it is frozen.
  Result<void *> device_pointer() const {
    void *pointer = nullptr;
    const auto status = rgaps_buffer_device_pointer(buffer_.get(), &pointer);
    return detail::made(status, std::move(pointer));
  }
  /// Ends the filling, in stream order: from now on it can be published, and no longer changed.
  Result<void> freeze(Stream stream = nullptr) { return detail::done(rgaps_buffer_freeze(buffer_.get(), stream)); }
  /// The handle, for the calls of rgaps.h.
  rgaps_buffer_t *c() const noexcept { return buffer_.get(); }

 private:
  friend class Pool;
  struct End {
    void operator()(rgaps_buffer_t *buffer) const { rgaps_buffer_release(buffer); }
  };
  explicit Buffer(rgaps_buffer_t *buffer) : buffer_(buffer) {}
  std::unique_ptr<rgaps_buffer_t, End> buffer_;
};

/// Publishes messages of one kind on one topic. Usable from any thread.
///
///     auto publisher = node.publisher<rgaps::Bytes>("raw").value();
///     const char text[] = {'h', 'e', 'l', 'l', 'o'};
///     publisher.push_host(rgaps::Bytes::create(sizeof text).value(), text, sizeof text).value();
///     std::vector<rgaps::Loan<rgaps::Bytes>> loans;
///     for (int i = 0; i < 8; i++) loans.push_back(publisher.loan(rgaps::Bytes::create(1).value()).value());
///     for (auto &loan : loans) loan.as<char>().value()[0] = 'x';
///     publisher.publish_all(loans).value();
///     assert(publisher.statistics().value().published == 9 && loans.empty());
template <class M>
class Publisher {
 public:
  /// Loans a block for the bytes that `meta` describes. Fill it in place and publish it without a copy.
  Result<Loan<M>> loan(const M &meta) const {
    rgaps_loan_t *loan = nullptr;
    const auto status = rgaps_publisher_loan(publisher_.get(), &meta.c(), &loan);
    return detail::made(status, Loan<M>(loan));
  }
  /// Publishes a copy of device memory, in stream order: one copy on the device. See rgaps_publisher_push_on.
  Result<rgaps_message_handle_t> push(const M &meta, const void *data, std::uint64_t bytes, Stream stream = nullptr) const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_publisher_push_on(publisher_.get(), &meta.c(), data, bytes, stream, &handle);
    return detail::made(status, std::move(handle));
  }
  /// Publishes a copy of host memory, whatever the node's device: one copy, complete when the call returns.
  Result<rgaps_message_handle_t> push_host(const M &meta, const void *data, std::uint64_t bytes) const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_publisher_push_host(publisher_.get(), &meta.c(), data, bytes, &handle);
    return detail::made(status, std::move(handle));
  }
  /// Publishes several loans of this publisher, in their order, and wakes each sleeping subscriber once for all of them. Removes from `loans` those
  /// that have ended: all of them, or after a failure those that were published and the one that was given back. The bytes must be complete: for
  /// stream order, publish each loan by itself. See rgaps_publisher_publish_all.
  Result<std::vector<rgaps_message_handle_t>> publish_all(std::vector<Loan<M>> &loans) const {
    std::vector<rgaps_message_handle_t> handles(loans.size());
    std::vector<rgaps_loan_t *> open;
    open.reserve(loans.size());
    for (auto &loan : loans) open.push_back(loan.loan_.get());
    const auto status = rgaps_publisher_publish_all(publisher_.get(), open.data(), open.size(), handles.data(), nullptr);
    std::size_t left = 0;
    for (std::size_t i = 0; i < loans.size(); ++i) {
      if (open[i] == nullptr) {
        static_cast<void>(loans[i].loan_.release());
      } else if (left++ != i) {
        loans[left - 1] = std::move(loans[i]);
      }
    }
    loans.erase(loans.begin() + static_cast<std::ptrdiff_t>(left), loans.end());
    return detail::made(status, std::move(handles));
  }
  /// Publishes a frozen buffer of the pool that the publisher was created in, without a copy, and in stream order. See rgaps_publisher_publish_buffer.
  Result<rgaps_message_handle_t> publish_buffer(const M &meta, const Buffer &buffer, Stream stream = nullptr) const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_publisher_publish_buffer(publisher_.get(), &meta.c(), buffer.c(), stream, &handle);
    return detail::made(status, std::move(handle));
  }
  /// The number of subscribers on this host, plus one for each remote host that subscribes.
  std::uint64_t subscriber_count() const { return rgaps_publisher_subscriber_count(publisher_.get()); }
  /// Counters of the publisher and its pool.
  Result<rgaps_publisher_statistics_t> statistics() const {
    rgaps_publisher_statistics_t statistics{};
    const auto status = rgaps_publisher_statistics(publisher_.get(), &statistics);
    return detail::made(status, std::move(statistics));
  }
  /// The handle, for the calls of rgaps.h.
  rgaps_publisher_t *c() const noexcept { return publisher_.get(); }

 private:
  friend class Node;
  friend class Pool;
  struct End {
    void operator()(rgaps_publisher_t *publisher) const { rgaps_publisher_destroy(publisher); }
  };
  explicit Publisher(rgaps_publisher_t *publisher) : publisher_(publisher) {}
  std::unique_ptr<rgaps_publisher_t, End> publisher_;
};

/// A taken message, in the memory where its publisher wrote it. Released after the work of the stream that it was taken on, or released on.
///
///     auto publisher = node.publisher<rgaps::Image>("camera/front").value();
///     auto subscriber = node.subscriber<rgaps::Image>("camera/front").value();
///     auto loan = publisher.loan(rgaps::Image::create(640, 480, "mono8").value()).value();
///     for (auto &pixel : loan.as<std::uint8_t>().value()) pixel = 128;
///     std::move(loan).publish().value();
///
///     std::optional<rgaps::Sample<rgaps::Image>> sample = subscriber.take().value();
///     assert(sample && sample->meta().value().width() == 640);
///     assert(sample->as<std::uint8_t>().value()[0] == 128);  // in place
template <class M>
class [[nodiscard]] Sample {
 public:
  /// The metadata.
  Result<M> meta() const {
    M meta;
    const auto status = rgaps_sample_meta(sample_.get(), &meta.c());
    return detail::made(status, std::move(meta));
  }
  /// The message's origin, its route and the time of each stage.
  Result<rgaps_info_t> info() const {
    rgaps_info_t info{};
    const auto status = rgaps_sample_info(sample_.get(), &info);
    return detail::made(status, std::move(info));
  }
  /// The handle that names the message outside RGAPS, for example in a ROS message.
  Result<rgaps_message_handle_t> handle() const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_sample_handle(sample_.get(), &handle);
    return detail::made(status, std::move(handle));
  }
  /// The payload for the CPU: in place if the CPU can read it there, else a copy, which is counted. Do not write to it.
  template <class T = std::byte>
  Result<Span<const T>> as() const {
    const void *data = nullptr;
    std::uint64_t bytes = 0;
    if (rgaps_sample_data(sample_.get(), &data, &bytes) != RGAPS_OK) return detail::failure();
    return detail::as<const T>(data, bytes);
  }
  /// The payload's pointer on the device. Do not write to it.
  Result<const void *> device_pointer() const {
    const void *pointer = nullptr;
    const auto status = rgaps_sample_device_pointer(sample_.get(), &pointer, nullptr);
    return detail::made(status, std::move(pointer));
  }
  /// Whether the bytes are written.
  Result<rgaps_readiness_t> readiness() const {
    std::uint32_t readiness = 0;
    const auto status = rgaps_sample_readiness(sample_.get(), &readiness);
    return detail::made(status, static_cast<rgaps_readiness_t>(readiness));
  }
  /// A DLPack tensor for an array library to read; it holds the message. See rgaps_sample_dlpack.
  Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr, Stream stream = nullptr) const {
    DLManagedTensorVersioned *tensor = nullptr;
    const auto status = rgaps_sample_dlpack(sample_.get(), field, stream, &tensor);
    return detail::made(status, std::move(tensor));
  }
  /// Owns a message of rgaps.h, which is released behind the work of the stream.
  static Sample adopt(rgaps_sample_t *message, Stream stream) { return Sample(message, stream); }
  /// Releases the message after the stream's work so far, without waiting for it. The Sample ends even if the call fails.
  Result<void> release(Stream stream) && { return detail::done(rgaps_sample_release(sample_.release(), stream)); }

 private:
  template <class>
  friend class Subscriber;
  struct End {
    Stream stream;
    void operator()(rgaps_sample_t *message) const { rgaps_sample_release(message, stream); }
  };
  Sample(rgaps_sample_t *message, Stream stream) : sample_(message, End{stream}) {}
  std::unique_ptr<rgaps_sample_t, End> sample_;
};

/// Takes messages of one kind from one topic. Usable from any thread.
///
///     auto subscriber = node.subscriber<rgaps::Bytes>("raw").value();
///     node.publisher<rgaps::Bytes>("raw").value().push_host(rgaps::Bytes::create(5).value(), "hello", 5).value();
///     while (auto sample = subscriber.wait(std::chrono::milliseconds(100)).value()) {
///       assert(sample->as<char>().value().size() == 5);
///     }
///     assert(subscriber.statistics().value().taken == 1);
template <class M>
class Subscriber {
 public:
  /// Takes the next message if one is ready.
  Result<std::optional<Sample<M>>> take() const {
    rgaps_sample_t *message = nullptr;
    const auto status = rgaps_subscriber_take(subscriber_.get(), &message);
    return given(status, RGAPS_NO_MESSAGE, message, nullptr);
  }
  /// Takes the next message in stream order: later work of the stream waits for its bytes.
  Result<std::optional<Sample<M>>> take_on(Stream stream) const {
    rgaps_sample_t *message = nullptr;
    const auto status = rgaps_subscriber_take_on(subscriber_.get(), stream, &message);
    return given(status, RGAPS_NO_MESSAGE, message, stream);
  }
  /// Takes all messages that are ready, oldest first. An error ends the batch and is returned only if the batch is empty. An error that lasts
  /// (RGAPS_TOO_MANY_HELD while the batch is held) is therefore returned by the next call.
  Result<std::vector<Sample<M>>> take_all() const {
    std::vector<Sample<M>> all;
    for (;;) {
      auto next = take();
      if (!next && all.empty()) return next.error();
      if (!next || !*next) return Result<std::vector<Sample<M>>>(std::move(all));
      all.push_back(std::move(**next));
    }
  }
  /// Waits for the next message; none if the time-out expires.
  Result<std::optional<Sample<M>>> wait(std::chrono::nanoseconds timeout) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_wait(subscriber_.get(), ns, &message);
    return given(status, RGAPS_TIMED_OUT, message, nullptr);
  }
  /// Promises that takes by handle follow each publisher's order. See rgaps_subscriber_expect_handles_in_order.
  Result<void> expect_handles_in_order() const {
    return detail::done(rgaps_subscriber_expect_handles_in_order(subscriber_.get()));
  }
  /// Takes the message that a handle names, in any order; waits for it to arrive from another host. See rgaps_subscriber_take_by_handle.
  Result<Sample<M>> take_by_handle(const rgaps_message_handle_t &handle, std::chrono::nanoseconds timeout) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_take_by_handle(subscriber_.get(), &handle, ns, &message);
    return detail::made(status, Sample<M>(message, nullptr));
  }
  /// The same in stream order: later work of the stream waits for the bytes.
  Result<Sample<M>> take_by_handle_on(const rgaps_message_handle_t &handle, std::chrono::nanoseconds timeout, Stream stream) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_take_by_handle_on(subscriber_.get(), &handle, ns, stream, &message);
    return detail::made(status, Sample<M>(message, stream));
  }
  /// Ends waits and takes by handle in other threads; later calls do not wait. See rgaps_subscriber_interrupt.
  Result<void> interrupt() const { return detail::done(rgaps_subscriber_interrupt(subscriber_.get())); }
  /// A file descriptor for epoll; see rgaps_subscriber_event_fd.
  Result<int> fd() const {
    std::int32_t fd = -1;
    const auto status = rgaps_subscriber_event_fd(subscriber_.get(), &fd);
    return detail::made(status, static_cast<int>(fd));
  }
  /// Counters of the subscriber.
  Result<rgaps_subscriber_statistics_t> statistics() const {
    rgaps_subscriber_statistics_t statistics{};
    const auto status = rgaps_subscriber_statistics(subscriber_.get(), &statistics);
    return detail::made(status, std::move(statistics));
  }
  /// The handle, for the calls of rgaps.h.
  rgaps_subscriber_t *c() const noexcept { return subscriber_.get(); }

 private:
  friend class Node;
  struct End {
    void operator()(rgaps_subscriber_t *subscriber) const { rgaps_subscriber_destroy(subscriber); }
  };
  explicit Subscriber(rgaps_subscriber_t *subscriber) : subscriber_(subscriber) {}

  static Result<std::optional<Sample<M>>> given(rgaps_status_t status, rgaps_status_t none, rgaps_sample_t *message,
                                                 Stream stream) {
    if (status == none) return std::optional<Sample<M>>();
    if (status != RGAPS_OK) return detail::failure();
    return std::optional<Sample<M>>(Sample<M>(message, stream));
  }

  std::unique_ptr<rgaps_subscriber_t, End> subscriber_;
};

/// A pool that publishers of several topics share: one buffer of it can be a message of each. Usable from any thread.
///
///     auto pool = node.pool(64 << 20).value();
///     auto left = pool.publisher<rgaps::Bytes>("left").value();
///     auto right = pool.publisher<rgaps::Bytes>("right").value();
///     auto buffer = pool.allocate(5).value();
///     buffer.as<char>().value()[0] = 'x';
///     buffer.freeze().value();
///     left.publish_buffer(rgaps::Bytes::create(5).value(), buffer).value();
///     right.publish_buffer(rgaps::Bytes::create(5).value(), buffer).value();  // the same bytes, not a copy
class Pool {
 public:
  /// Allocates a buffer. If the pool is full, the exhaustion given to Node::pool decides. See rgaps_pool_allocate.
  Result<Buffer> allocate(std::uint64_t bytes) const {
    rgaps_buffer_t *buffer = nullptr;
    const auto status = rgaps_pool_allocate(pool_.get(), bytes, &buffer);
    return detail::made(status, Buffer(buffer));
  }
  /// Creates a publisher in the pool. The default QoS is ROS 2's.
  template <class M>
  Result<Publisher<M>> publisher(const std::string &topic,
                                 const rgaps_publisher_qos_t &qos = rgaps_publisher_qos_default()) const {
    rgaps_publisher_t *publisher = nullptr;
    const auto status = rgaps_publisher_create_in_pool(pool_.get(), topic.c_str(), M::kind, &qos, &publisher);
    return detail::made(status, Publisher<M>(publisher));
  }
  /// Bytes in blocks: of buffers, and of messages that are not released.
  std::uint64_t used_bytes() const { return rgaps_pool_used_bytes(pool_.get()); }
  /// The handle, for the calls of rgaps.h.
  rgaps_pool_t *c() const noexcept { return pool_.get(); }

 private:
  friend class Node;
  struct End {
    void operator()(rgaps_pool_t *pool) const { rgaps_pool_destroy(pool); }
  };
  explicit Pool(rgaps_pool_t *pool) : pool_(pool) {}
  std::unique_ptr<rgaps_pool_t, End> pool_;
};

/// A process's connection to the host's manager. Usable from any thread, but not after fork.
///
///     auto options = rgaps_node_options_default();
///     options.domain = 7;
///     auto robot = rgaps::Node::create(options).value();
///     auto latched = rgaps_publisher_qos_default();
///     latched.durability = RGAPS_TRANSIENT_LOCAL;
///     latched.history_depth = 1;
///     auto map = robot.publisher<rgaps::Image>("map", latched).value();
class Node {
 public:
  /// Creates a node with default settings. An empty name takes the program's name.
  static Result<Node> create(const std::string &name = {}) {
    auto options = rgaps_node_options_default();
    if (!name.empty()) options.name = name.c_str();
    return create(options);
  }
  /// Creates a node with settings; start from rgaps_node_options_default().
  static Result<Node> create(const rgaps_node_options_t &options) {
    rgaps_node_t *node = nullptr;
    const auto status = rgaps_node_create(&options, &node);
    return detail::made(status, Node(node));
  }
  /// Creates a publisher. The default QoS is ROS 2's.
  template <class M>
  Result<Publisher<M>> publisher(const std::string &topic,
                                 const rgaps_publisher_qos_t &qos = rgaps_publisher_qos_default()) const {
    rgaps_publisher_t *publisher = nullptr;
    const auto status = rgaps_publisher_create(node_.get(), topic.c_str(), M::kind, &qos, &publisher);
    return detail::made(status, Publisher<M>(publisher));
  }
  /// Creates a subscriber. The default QoS is ROS 2's.
  template <class M>
  Result<Subscriber<M>> subscriber(const std::string &topic,
                                   const rgaps_subscriber_qos_t &qos = rgaps_subscriber_qos_default()) const {
    rgaps_subscriber_t *subscriber = nullptr;
    const auto status = rgaps_subscriber_create(node_.get(), topic.c_str(), M::kind, &qos, &subscriber);
    return detail::made(status, Subscriber<M>(subscriber));
  }
  /// Creates a pool of `bytes` bytes that publishers of several topics share. Of the QoS, `exhaustion` and its time-out count. See rgaps_pool_create.
  Result<Pool> pool(std::uint64_t bytes, const rgaps_publisher_qos_t &qos = rgaps_publisher_qos_default()) const {
    rgaps_pool_t *pool = nullptr;
    const auto status = rgaps_pool_create(node_.get(), bytes, &qos, &pool);
    return detail::made(status, Pool(pool));
  }
  /// The device that has the node's payloads.
  Result<rgaps_device_t> device() const {
    rgaps_device_t device{};
    const auto status = rgaps_node_device(node_.get(), &device);
    return detail::made(status, std::move(device));
  }
  /// The handle, for the calls of rgaps.h.
  rgaps_node_t *c() const noexcept { return node_.get(); }

 private:
  struct End {
    void operator()(rgaps_node_t *node) const { rgaps_node_destroy(node); }
  };
  explicit Node(rgaps_node_t *node) : node_(node) {}
  std::unique_ptr<rgaps_node_t, End> node_;
};

/// The present time on this host's clock.
inline std::chrono::nanoseconds now() { return std::chrono::nanoseconds(rgaps_now()); }

}  // namespace rgaps

#endif  // RGAPS_HPP
