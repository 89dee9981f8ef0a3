//! Publish and subscribe device buffers: images, point clouds and tensors, shared in place on a host
