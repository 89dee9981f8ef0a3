//! Reads and writes consecutive little-endian fields in a buffer whose length was checked before.

use super::meta::MetaError;

/// Reads fields in the order of the layout. Panics when reading past the end: `of` checks the length, and a type reads no more than its fields.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of an encoded `type_name`, which must have exactly `expected` bytes.
    pub(super) fn of(type_name: &'static str, bytes: &'a [u8], expected: usize) -> Result<Self, MetaError> {
        if bytes.len() != expected {
            return Err(MetaError::EncodedLength { type_name, expected, found: bytes.len() });
        }
        Ok(Self(bytes))
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut field = [0; N];
        field.copy_from_slice(head);
        field
    }

    pub(super) fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn i32(&mut self) -> i32 {
        i32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(super) fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.array())
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, MetaError> {
        match self.u8() {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(MetaError::Flag { field, value }),
        }
    }
}

/// Writes fields in the order of the layout.
pub(super) struct Layout<'a> {
    to: &'a mut [u8],
    written: usize,
}

impl<'a> Layout<'a> {
    pub(super) fn into(to: &'a mut [u8]) -> Self {
        Self { to, written: 0 }
    }

    pub(super) fn bytes(&mut self, field: &[u8]) -> &mut Self {
        self.to[self.written..self.written + field.len()].copy_from_slice(field);
        self.written += field.len();
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn i32(&mut self, value: i32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn written(&self) -> usize {
        self.written
    }
}
