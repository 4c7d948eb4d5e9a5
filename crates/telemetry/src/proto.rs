//! Protocol-buffer encoding of the few messages that metric files need.

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Field number and wire type: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes.
fn put_key(out: &mut Vec<u8>, field: u64, wire_type: u64) {
    put_varint(out, field << 3 | wire_type);
}

/// An integer field; proto3 leaves out zeros.
pub(crate) fn put_int(out: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        put_key(out, field, 0);
        put_varint(out, value);
    }
}

pub(crate) fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_key(out, field, 1);
    out.extend(value.to_le_bytes());
}

pub(crate) fn put_float(out: &mut Vec<u8>, field: u64, value: f32) {
    put_key(out, field, 5);
    out.extend(value.to_le_bytes());
}

/// Text, bytes, or a message within a message.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(out, field, 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}
