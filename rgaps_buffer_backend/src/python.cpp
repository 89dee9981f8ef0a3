// The Python module: byte arrays of messages as arrays of other libraries.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "rgaps_buffer_backend/buffer.hpp"

namespace py = pybind11;

namespace rgaps_buffer_backend {

namespace {

using Bytes = rosidl::Buffer<std::uint8_t>;

// DLPack 1.1, by its Python specification (docs/source/python_spec.rst) and dlpack.h.
struct Tensor {
  void *data;
  Device device;
  std::int32_t ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // before DLPack 1.0
  Tensor tensor;
  void *owner;
  void (*deleter)(ManagedTensor *);
};

struct ManagedTensorVersioned {
  std::uint32_t major, minor;
  void *owner;
  void (*deleter)(ManagedTensorVersioned *);
  std::uint64_t flags;
  Tensor tensor;
};

constexpr std::uint64_t READ_ONLY = 1;
constexpr std::uint8_t UNSIGNED = 1;
constexpr std::int32_t CPU = 1;

constexpr const char *name_of(const ManagedTensor *) { return "dltensor"; }
constexpr const char *name_of(const ManagedTensorVersioned *) { return "dltensor_versioned"; }

/// Keeps an object of Python. May be dropped by any thread, as arrays are.
class KeptObject {
 public:
  explicit KeptObject(py::object object) : object_(object.is_none() ? nullptr : object.release().ptr()) {}
  KeptObject(const KeptObject &) = delete;
  KeptObject &operator=(const KeptObject &) = delete;
  ~KeptObject() {
    if (object_ == nullptr || Py_IsInitialized() == 0 || is_finalizing()) { return; }
    const auto state = PyGILState_Ensure();
    Py_DECREF(object_);
    PyGILState_Release(state);
  }

 private:
  /// Then no thread may take the interpreter's lock.
  static bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
  }

  PyObject *object_;
};

/// What keeps the memory of arrays: the read or write, and after a write its bytes. Their end is ordered on the stream, so that is kept longer.
template <bool IsWrite>
struct Kept {
  explicit Kept(py::object stream_object) : stream(std::move(stream_object)) {}

  KeptObject stream;
  Handle<IsWrite> handle;
  ReadHandle afterwards;
  std::uint8_t *data;
};

/// A tensor, and the read or write that keeps its memory.
template <class Managed, bool IsWrite>
struct Owned {
  Managed managed;
  std::int64_t count, stride = 1;
  std::shared_ptr<Kept<IsWrite>> kept;
};

/// A capsule that owns the tensor until it is consumed.
template <class Managed, bool IsWrite>
py::object capsule(std::shared_ptr<Kept<IsWrite>> kept, std::size_t count, Device device) {
  using Both = Owned<Managed, IsWrite>;
  auto made = std::make_unique<Both>();
  made->count = static_cast<std::int64_t>(count);
  made->kept = std::move(kept);
  made->managed = Managed{};
  made->managed.owner = made.get();
  made->managed.deleter = [](Managed *managed) { delete static_cast<Both *>(managed->owner); };
  made->managed.tensor = Tensor{made->kept->data, device, 1, UNSIGNED, 8, 1, &made->count, &made->stride, 0};
  if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) {
    made->managed.major = 1;
    made->managed.minor = 1;
    made->managed.flags = IsWrite ? 0 : READ_ONLY;
  }
  auto *object = PyCapsule_New(&made->managed, name_of(&made->managed), [](PyObject *dying) {
    const auto *name = name_of(static_cast<Managed *>(nullptr));
    if (PyCapsule_IsValid(dying, name) == 0) { return; }  // consumed: its consumer calls the deleter
    auto *managed = static_cast<Managed *>(PyCapsule_GetPointer(dying, name));
    managed->deleter(managed);
  });
  if (object == nullptr) { throw py::error_already_set(); }
  made.release();
  return py::reinterpret_steal<py::object>(object);
}

/// A stream as programs pass it. Both default streams are the legacy one, which is ordered with the default stream of every thread.
Stream stream_of(const py::object &stream) {
  if (stream.is_none()) { return nullptr; }
  std::uintptr_t number = 0;
  const py::type_error refused("a stream is a number, a stream of torch or cupy, or an object with __cuda_stream__");
  try {
    if (py::isinstance<py::int_>(stream) && !py::isinstance<py::bool_>(stream)) {
      number = stream.cast<std::uintptr_t>();
    } else if (py::hasattr(stream, "__cuda_stream__")) {
      number = stream.attr("__cuda_stream__")().cast<py::tuple>()[1].cast<std::uintptr_t>();
    } else if (py::hasattr(stream, "cuda_stream")) {
      number = stream.attr("cuda_stream").cast<std::uintptr_t>();
    } else if (py::hasattr(stream, "ptr")) {
      number = stream.attr("ptr").cast<std::uintptr_t>();
    } else {
      throw refused;
    }
  } catch (const py::cast_error &) {  // negative, or none
    throw refused;
  }
  return number <= 2 ? nullptr : reinterpret_cast<Stream>(number);
}

/// The bytes behind a rosidl_buffer.Buffer; null for any other object.
Bytes *buffer_of(const py::object &data) {
  const auto module = py::module_::import("rosidl_buffer");
  if (!py::isinstance(data, module.attr("Buffer"))) { return nullptr; }
  return reinterpret_cast<Bytes *>(module.attr("_get_buffer_ptr")(data).cast<std::uintptr_t>());
}

/// What numpy sees of a read or write in host memory. It keeps it.
template <bool IsWrite>
struct Memory {
  std::shared_ptr<Kept<IsWrite>> kept;
  std::size_t count;

  py::dict interface() const {
    py::dict described;
    described["version"] = 3;
    described["shape"] = py::make_tuple(count);
    described["typestr"] = "|u1";
    described["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(kept->data), !IsWrite);
    return described;
  }
};

/// A read or write. Arrays made of it keep its memory.
template <bool IsWrite>
class Array {
 public:
  Array(Handle<IsWrite> handle, std::size_t count, py::object data, Stream stream, py::object stream_object)
      : kept_(std::make_shared<Kept<IsWrite>>(std::move(stream_object))), count_(count), data_(std::move(data)), stream_(stream), device_(handle.get_device()) {
    kept_->data = const_cast<std::uint8_t *>(handle.get_ptr());
    kept_->handle = std::move(handle);
  }

  /// Ends it. Arrays that are still there keep the memory.
  void end() {
    if (kept_ == nullptr) { return; }
    if constexpr (IsWrite) {
      if (kept_.use_count() > 1) { kept_->afterwards = from_input_buffer(*buffer_of(data_), stream_); }
      kept_->handle = {};
    }
    kept_.reset();
  }

  std::pair<int, int> device() const { return {device_.type, device_.id}; }

  std::size_t count() const { return count_; }

  py::object dlpack(const py::object &stream, const std::optional<std::pair<int, int>> &max_version,
                    const std::optional<std::pair<int, int>> &dl_device, const std::optional<bool> &copy) const {
    check_open();
    if (copy.value_or(false) || dl_device.value_or(device()) != device()) {
      throw py::buffer_error("these bytes are not copied here: take the array as it is, and copy it");
    }
    const bool has_number = py::isinstance<py::int_>(stream) && !py::isinstance<py::bool_>(stream);
    const bool waits = !(has_number && stream.cast<long>() == -1);
    if (device_.type == CPU ? waits && !stream.is_none() : waits && stream_of(stream) != stream_) {
      throw py::buffer_error("the array's consumer works on another stream: pass its stream to from_input_buffer or from_output_buffer (none for host memory)");
    }
    if (max_version && max_version->first >= 1) { return capsule<ManagedTensorVersioned, IsWrite>(kept_, count_, device_); }
    return capsule<ManagedTensor, IsWrite>(kept_, count_, device_);
  }

  py::object array(const py::object &dtype, const py::object &copy) const {
    check_open();
    if (device_.type != CPU) { throw py::buffer_error("the bytes are on a GPU: use torch.from_dlpack or cupy.from_dlpack, or data.to_bytes() for a copy"); }
    auto made = py::module_::import("numpy").attr("asarray")(Memory<IsWrite>{kept_, count_});
    if (!dtype.is_none()) {
      const py::object converted = made.attr("astype")(dtype, py::arg("copy") = false);
      const bool wants_copy = !copy.is_none() && copy.cast<bool>();
      if (IsWrite && !converted.is(made) && !wants_copy) {
        throw py::value_error("what is written to a converted copy would be lost: take the array as uint8, and use view(dtype)");
      }
      if (!converted.is(made) && !copy.is_none() && !copy.cast<bool>()) { throw py::value_error("the bytes are uint8: another dtype needs a copy"); }
      made = converted;
    }
    return !copy.is_none() && copy.cast<bool>() ? py::object(made.attr("copy")()) : py::object(made);
  }

 private:
  void check_open() const {
    if (kept_ == nullptr) { throw py::buffer_error("this read or write has ended"); }
  }

  std::shared_ptr<Kept<IsWrite>> kept_;
  std::size_t count_;
  /// The message's bytes.
  py::object data_;
  Stream stream_;
  Device device_;
};

py::object allocate(std::size_t count) {
  auto made = std::make_unique<Bytes>([&] {
    // A full pool, or a manager that is started, may take a while.
    py::gil_scoped_release released;
    return allocate_buffer(count);
  }());
  auto module = py::module_::import("rosidl_buffer");
  return module.attr("_take_buffer_from_ptr")(reinterpret_cast<std::uintptr_t>(made.release()));
}

Array<true> output(py::object data, py::object stream) {
  auto *bytes = buffer_of(data);
  if (bytes == nullptr || bytes->get_backend_type() != "rgaps") {
    throw py::type_error("these bytes are not in a pool of RGAPS: assign allocate_buffer(count) to the field first");
  }
  const auto on = stream_of(stream);
  auto handle = [&] {
    py::gil_scoped_release released;
    return from_output_buffer(*bytes, on);
  }();
  return {std::move(handle), bytes->size(), std::move(data), on, std::move(stream)};
}

Array<false> input(py::object data, py::object stream) {
  auto *bytes = buffer_of(data);
  if (bytes == nullptr) {
    // As rclpy delivers bytes. They are copied into a pool, so that the caller need not tell them apart.
    const auto array = py::buffer(data).request();
    if (array.itemsize * array.size != array.size || array.ndim != 1 || array.strides[0] != 1) { throw py::type_error("a message's bytes are one array of uint8"); }
    const auto count = static_cast<std::size_t>(array.size);
    data = allocate(count);
    bytes = buffer_of(data);
    copy_from_host(*bytes, array.ptr, count);
  }
  const auto on = stream_of(stream);
  auto handle = [&] {
    // It may wait for bytes that are later than their message.
    py::gil_scoped_release released;
    return from_input_buffer(*bytes, on);
  }();
  return {std::move(handle), bytes->size(), std::move(data), on, std::move(stream)};
}

template <bool IsWrite>
void add_array(py::module_ &module, const char *name, const char *memory, const char *text) {
  py::class_<Memory<IsWrite>>(module, memory).def_property_readonly("__array_interface__", &Memory<IsWrite>::interface);
  py::class_<Array<IsWrite>>(module, name, text)
      .def("__len__", &Array<IsWrite>::count)
      .def("end", &Array<IsWrite>::end, "Ends it; leaving a with block does that, too.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Array<IsWrite> &self, const py::args &) { self.end(); })
      .def("__dlpack_device__", &Array<IsWrite>::device)
      .def("__dlpack__", &Array<IsWrite>::dlpack, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
           py::arg("dl_device") = py::none(), py::arg("copy") = py::none(), "As the Python array API says. The consumer works on the stream of this.")
      .def("__array__", &Array<IsWrite>::array, py::arg("dtype") = py::none(), py::arg("copy") = py::none(), "For numpy, in host memory.");
}

py::dict counters() {
  const auto found = statistics();
  py::dict all;
  all["allocated"] = found.allocated;
  all["published"] = found.published;
  all["as_bytes"] = found.as_bytes;
  all["copied"] = found.copied;
  all["received"] = found.received;
  all["refused"] = found.refused;
  all["reached"] = found.reached;
  all["used_bytes"] = found.used_bytes;
  return all;
}

}  // namespace

PYBIND11_MODULE(_rgaps_buffer_backend, module) {
  py::register_exception<Error>(module, "Error", PyExc_RuntimeError).attr("__doc__") =
      "Why a buffer cannot be allocated, written or read. The text says what to do.";
  add_array<false>(module, "ReadHandle", "_ReadMemory", "Bytes to read. Arrays made of it keep them, whatever becomes of the message.");
  add_array<true>(module, "WriteHandle", "_WriteMemory", "Bytes to write. End it before the message is published, and write no more then.");
  module.def("allocate_buffer", &allocate, py::arg("count"),
             "Allocates the bytes of a message (a rosidl_buffer.Buffer) in the process's pool. A full pool drops what subscriptions have not taken, oldest first.");
  module.def("from_output_buffer", &output, py::arg("buffer"), py::arg("stream") = py::none(), "A message's bytes, which allocate_buffer allocated, to write by work of a stream. TypeError for other bytes.");
  module.def("from_input_buffer", &input, py::arg("buffer"), py::arg("stream") = py::none(),
             "A message's bytes, to read by work of a stream. Bytes outside a pool are copied into one. Waits at most a second for bytes that are later than "
             "their message, and at most 10 for the manager if their publisher's pool is not mapped yet.");
  module.def("statistics", &counters, "Counters of the process's buffers (a dict): allocated, published, as_bytes, copied, received, refused, reached, used_bytes; docs/rosidl-buffer.md explains them.");
}

}  // namespace rgaps_buffer_backend
