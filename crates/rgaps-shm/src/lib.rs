//! The RGAPS topic segment: pools, queue, messages and holder words in shared memory
