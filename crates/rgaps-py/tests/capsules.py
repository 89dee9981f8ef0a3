"""DLPack's capsules as a consumer in C sees them."""

import ctypes

VERSIONED, LEGACY = b"dltensor_versioned", b"dltensor"

api = ctypes.pythonapi
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.restype = ctypes.c_int
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    pass


class Versioned(ctypes.Structure):
    pass


Legacy._fields_ = [
    ("tensor", DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Legacy))),
]
Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))),
    ("flags", ctypes.c_uint64),
    ("tensor", DLTensor),
]


class Consumer:
    """Takes a capsule as an array library does; `close` calls the deleter."""

    def __init__(self, capsule):
        self.is_versioned = bool(api.PyCapsule_IsValid(capsule, VERSIONED))
        name, kind = (VERSIONED, Versioned) if self.is_versioned else (LEGACY, Legacy)
        self.managed = ctypes.cast(api.PyCapsule_GetPointer(capsule, name), ctypes.POINTER(kind))
        # The name must outlive the capsule.
        self.used = ctypes.c_char_p(b"used_" + name)
        USED.append(self.used)
        api.PyCapsule_SetName(capsule, self.used)

    @property
    def flags(self):
        return self.managed.contents.flags

    @property
    def tensor(self):
        return self.managed.contents.tensor

    @property
    def shape(self):
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self):
        return tuple(self.tensor.strides[: self.tensor.ndim])

    def close(self):
        self.managed.contents.deleter(self.managed)


USED = []


class Unwilling:
    """An array of a library older than DLPack 1.0, which knows only the first arguments of the protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)
