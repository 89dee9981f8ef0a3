//! Control plane of RGAPS: local socket protocol, topic directory, host discovery, ring hand-shake
