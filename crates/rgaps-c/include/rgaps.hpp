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
 * - **Errors**: every call that may fail returns a Result. Whoever likes exceptions says .value(), which throws rgaps::Error; whoever does not
 *   asks the Result, as of std::expected. Nothing else throws but what the standard library throws for want of memory.
 * - **Owners**: Node, Publisher, Subscriber, Loan and Sample are moved, not copied, and end what they own. An owner that was moved from, or
 *   whose message was published or released, answers RGAPS_INVALID_HANDLE.
 * - **Streams**: a cudaStream_t or CUstream of the device's primary context; nullptr is CUDA's default stream. Of no meaning on the host backend.
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
class Error : public std::runtime_error {
 public:
  explicit Error(const Failure &failure) : std::runtime_error(failure.text), status_(failure.status) {}
  /// What kind of failure.
  rgaps_status_t status() const noexcept { return status_; }

 private:
  rgaps_status_t status_;
};

namespace detail {

/// What this thread's last call said.
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

/// What a call returned, or why it failed.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(Failure failure) : content_(std::in_place_index<1>, std::move(failure)) {}

  bool has_value() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// The value; throws Error if there is none (ends the program where exceptions are off).
  T &value() & { return check(), *std::get_if<0>(&content_); }
  const T &value() const & { return check(), *std::get_if<0>(&content_); }
  T value() && { return check(), std::move(*std::get_if<0>(&content_)); }

  /// The value, which there must be.
  T &operator*() & { return *std::get_if<0>(&content_); }
  T operator*() && { return std::move(*std::get_if<0>(&content_)); }
  T *operator->() { return std::get_if<0>(&content_); }

  /// Why there is no value, which there must not be.
  const Failure &error() const { return *std::get_if<1>(&content_); }

 private:
  void check() const {
    if (!has_value()) detail::raise(error());
  }

  std::variant<T, Failure> content_;
};

/// That a call was made, or why it failed.
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
  /// Why the call failed, which it must have.
  const Failure &error() const { return *failure_; }

 private:
  std::optional<Failure> failure_;
};

/// Elements of memory that somebody else owns, as C++20's std::span, which can be made of it.
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

/// The value of a call that wrote it to `made`.
template <class T>
Result<T> made(rgaps_status_t status, T &&made) {
  if (status != RGAPS_OK) return failure();
  return Result<T>(std::forward<T>(made));
}

/// Memory as elements of T: as many as there are whole ones.
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

/// What all kinds of metadata have.
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
  /// 32 bytes that are free for the application.
  Span<std::uint8_t> user() noexcept { return {meta_.as.header.user, sizeof meta_.as.header.user}; }
  /// Bytes of payload that it describes; 0 if it contradicts itself.
  std::uint64_t payload_bytes() const { return rgaps_meta_payload_bytes(&meta_); }

 protected:
  rgaps_meta_t meta_{};
};

/// Raw bytes.
class Bytes : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_BYTES;
  /// A payload of so many bytes.
  static Result<Bytes> create(std::uint64_t bytes) {
    Bytes meta;
    const auto status = rgaps_meta_bytes(&meta.meta_, bytes);
    return detail::made(status, std::move(meta));
  }
  std::uint64_t bytes() const noexcept { return meta_.as.bytes.bytes; }
};

/// A picture.
class Image : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_IMAGE;
  /// A picture whose rows follow each other without gaps. `encoding` is a name of sensor_msgs/image_encodings.
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
class PointCloud : public Meta {
 public:
  static constexpr rgaps_kind_t kind = RGAPS_KIND_POINT_CLOUD;
  /// A cloud of `width` x `height` points of `point_step` bytes, without fields as yet.
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

/// A block of a publisher's pool that is being filled. Given back if it is not published.
template <class M>
class [[nodiscard]] Loan {
 public:
  /// The block for the CPU: in place where it can reach it, else memory that is copied there when the loan is published.
  template <class T = std::byte>
  Result<Span<T>> as() {
    void *data = nullptr;
    std::uint64_t bytes = 0;
    if (rgaps_loan_data(loan_.get(), &data, &bytes) != RGAPS_OK) return detail::failure();
    return detail::as<T>(data, bytes);
  }
  /// Where the device fills the block: a kernel, or a copy.
  Result<void *> device_pointer() const {
    void *pointer = nullptr;
    const auto status = rgaps_loan_device_pointer(loan_.get(), &pointer);
    return detail::made(status, std::move(pointer));
  }
  /// Completes the metadata; it keeps describing the same number of bytes.
  Result<void> set_meta(const M &meta) { return detail::done(rgaps_loan_set_meta(loan_.get(), &meta.c())); }
  /// A DLPack tensor for an array library to fill; see rgaps_loan_dlpack.
  Result<DLManagedTensorVersioned *> dlpack(const char *field = nullptr) const {
    DLManagedTensorVersioned *tensor = nullptr;
    const auto status = rgaps_loan_dlpack(loan_.get(), field, &tensor);
    return detail::made(status, std::move(tensor));
  }
  /// Publishes, behind the stream's work so far. The loan is over, whatever is returned.
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

/// Publishes messages of one kind on one topic. Usable from any thread.
template <class M>
class Publisher {
 public:
  /// A block for the bytes that `meta` describes, to be filled in place and published without a copy.
  Result<Loan<M>> loan(const M &meta) const {
    rgaps_loan_t *loan = nullptr;
    const auto status = rgaps_publisher_loan(publisher_.get(), &meta.c(), &loan);
    return detail::made(status, Loan<M>(loan));
  }
  /// Publishes device memory, behind the stream's work so far: one copy on the device. See rgaps_publisher_push_message.
  Result<rgaps_message_handle_t> push(const M &meta, const void *data, std::uint64_t bytes, Stream stream = nullptr) const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_publisher_push_message(publisher_.get(), &meta.c(), data, bytes, stream, &handle);
    return detail::made(status, std::move(handle));
  }
  /// Publishes memory of the CPU's, on whatever device: one copy, done when the call returns.
  Result<rgaps_message_handle_t> push_host(const M &meta, const void *data, std::uint64_t bytes) const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_publisher_push_host(publisher_.get(), &meta.c(), data, bytes, &handle);
    return detail::made(status, std::move(handle));
  }
  /// Subscribers on this host; each remote host that wants the topic counts as one.
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
  struct End {
    void operator()(rgaps_publisher_t *publisher) const { rgaps_publisher_destroy(publisher); }
  };
  explicit Publisher(rgaps_publisher_t *publisher) : publisher_(publisher) {}
  std::unique_ptr<rgaps_publisher_t, End> publisher_;
};

/// A taken message, in the memory where its publisher put it. Released behind the work of the stream that it was taken on, or released on.
template <class M>
class [[nodiscard]] Sample {
 public:
  /// What the payload is.
  Result<M> meta() const {
    M meta;
    const auto status = rgaps_sample_meta(sample_.get(), &meta.c());
    return detail::made(status, std::move(meta));
  }
  /// Where it came from, the path that it took and when it passed each stage.
  Result<rgaps_info_t> info() const {
    rgaps_info_t info{};
    const auto status = rgaps_sample_info(sample_.get(), &info);
    return detail::made(status, std::move(info));
  }
  /// What names it elsewhere, as in a ROS message.
  Result<rgaps_message_handle_t> handle() const {
    rgaps_message_handle_t handle{};
    const auto status = rgaps_sample_handle(sample_.get(), &handle);
    return detail::made(status, std::move(handle));
  }
  /// The payload for the CPU: in place where it can read it, else a copy of its own, counted. It must not be written.
  template <class T = std::byte>
  Result<Span<const T>> as() const {
    const void *data = nullptr;
    std::uint64_t bytes = 0;
    if (rgaps_sample_data(sample_.get(), &data, &bytes) != RGAPS_OK) return detail::failure();
    return detail::as<const T>(data, bytes);
  }
  /// Where the device reads the payload. It must not be written.
  Result<const void *> device_pointer() const {
    const void *pointer = nullptr;
    const auto status = rgaps_sample_device_pointer(sample_.get(), &pointer, nullptr);
    return detail::made(status, std::move(pointer));
  }
  /// Whether its bytes are there.
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
  /// Lets it go behind the stream's work so far, without waiting for that. The message is over, whatever is returned.
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
template <class M>
class Subscriber {
 public:
  /// The next message if one is ready, with its bytes there.
  Result<std::optional<Sample<M>>> take() const {
    rgaps_sample_t *message = nullptr;
    const auto status = rgaps_subscriber_take(subscriber_.get(), &message);
    return given(status, RGAPS_NO_MESSAGE, message, nullptr);
  }
  /// The next message, whose bytes the device may still have to bring: later work of the stream waits for them.
  Result<std::optional<Sample<M>>> take_on(Stream stream) const {
    rgaps_sample_t *message = nullptr;
    const auto status = rgaps_subscriber_take_on(subscriber_.get(), stream, &message);
    return given(status, RGAPS_NO_MESSAGE, message, stream);
  }
  /// Everything that can be taken now, oldest first. An error ends a batch; it is told where nothing could be taken, and so by the next call
  /// if it lasts, as RGAPS_TOO_MANY_HELD does while the batch is held.
  Result<std::vector<Sample<M>>> take_all() const {
    std::vector<Sample<M>> all;
    for (;;) {
      auto next = take();
      if (!next && all.empty()) return next.error();
      if (!next || !*next) return Result<std::vector<Sample<M>>>(std::move(all));
      all.push_back(std::move(**next));
    }
  }
  /// The next message, or none within the time.
  Result<std::optional<Sample<M>>> wait(std::chrono::nanoseconds timeout) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_wait(subscriber_.get(), ns, &message);
    return given(status, RGAPS_TIMED_OUT, message, nullptr);
  }
  /// From now on takes by handle come in the order of each publisher. See rgaps_subscriber_expect_handles_in_order.
  Result<void> expect_handles_in_order() const {
    return detail::done(rgaps_subscriber_expect_handles_in_order(subscriber_.get()));
  }
  /// The message that a handle names, in its order or out of it; waits for it to come from another host. See rgaps_subscriber_take_by_handle.
  Result<Sample<M>> take_by_handle(const rgaps_message_handle_t &handle, std::chrono::nanoseconds timeout) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_take_by_handle(subscriber_.get(), &handle, ns, &message);
    return detail::made(status, Sample<M>(message, nullptr));
  }
  /// The same for a stream, whose later work waits for the bytes.
  Result<Sample<M>> take_by_handle_on(const rgaps_message_handle_t &handle, std::chrono::nanoseconds timeout, Stream stream) const {
    rgaps_sample_t *message = nullptr;
    const auto ns = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
    const auto status = rgaps_subscriber_take_by_handle_on(subscriber_.get(), &handle, ns, stream, &message);
    return detail::made(status, Sample<M>(message, stream));
  }
  /// Ends waits and takes by handle that other threads are in, and lets no later one wait; see rgaps_subscriber_interrupt.
  Result<void> interrupt() const { return detail::done(rgaps_subscriber_interrupt(subscriber_.get())); }
  /// A descriptor for epoll; see rgaps_subscriber_fd.
  Result<int> fd() const {
    std::int32_t fd = -1;
    const auto status = rgaps_subscriber_fd(subscriber_.get(), &fd);
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

/// A process's part in RGAPS: its connection to the host's manager. Usable from any thread; not after fork.
class Node {
 public:
  /// A node with default settings; an empty name is the program's.
  static Result<Node> create(const std::string &name = {}) {
    auto options = rgaps_node_options_default();
    if (!name.empty()) options.name = name.c_str();
    return create(options);
  }
  /// A node with settings: start from rgaps_node_options_default().
  static Result<Node> create(const rgaps_node_options_t &options) {
    rgaps_node_t *node = nullptr;
    const auto status = rgaps_node_create(&options, &node);
    return detail::made(status, Node(node));
  }
  /// A publisher; the default QoS is ROS 2's.
  template <class M>
  Result<Publisher<M>> publisher(const std::string &topic,
                                 const rgaps_publisher_qos_t &qos = rgaps_publisher_qos_default()) const {
    rgaps_publisher_t *publisher = nullptr;
    const auto status = rgaps_publisher_create(node_.get(), topic.c_str(), M::kind, &qos, &publisher);
    return detail::made(status, Publisher<M>(publisher));
  }
  /// A subscriber; the default QoS is ROS 2's.
  template <class M>
  Result<Subscriber<M>> subscriber(const std::string &topic,
                                   const rgaps_subscriber_qos_t &qos = rgaps_subscriber_qos_default()) const {
    rgaps_subscriber_t *subscriber = nullptr;
    const auto status = rgaps_subscriber_create(node_.get(), topic.c_str(), M::kind, &qos, &subscriber);
    return detail::made(status, Subscriber<M>(subscriber));
  }
  /// Where the payloads of this host are.
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

/// Now, on this host's clock.
inline std::chrono::nanoseconds now() { return std::chrono::nanoseconds(rgaps_now()); }

}  // namespace rgaps

#endif  // RGAPS_HPP
